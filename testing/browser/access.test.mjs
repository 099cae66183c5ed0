// Who is let in, as a browser sees it.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import { after, test } from 'node:test';
import { Server, browser, check, close, details, go, open, picture, tow } from './support.mjs';

after(close);

const REFUSED = /status of 401/;

test('the token leaves the address, and stays in the tab', async (t) => {
  const broker = await Server.start(t, 'broker');
  const page = await open(t, broker);
  await page.getByText('● ready').waitFor();
  assert.equal(page.url(), broker.url);
  await page.reload();
  await page.getByText('● ready').waitFor();
  assert.deepEqual(await page.context().cookies(), []);
});

test('without the token, or with a wrong one, the page asks for it', async (t) => {
  const broker = await Server.start(t, 'broker');
  for (const hash of ['', `#token=${'x'.repeat(43)}`]) {
    const page = await open(t, broker, { hash, allowed: REFUSED });
    await page.getByRole('heading', { name: 'A token is needed' }).waitFor();
    await check(page, 'the form');
    await picture(page, 'token');
    await page.getByLabel(/^Token/).fill('wrong');
    await page.getByRole('button', { name: 'Open' }).click();
    await page.getByRole('alert').getByText('Refused: the token is wrong.').waitFor();
    await page.getByLabel(/^Token/).fill(`${broker.url}#token=${broker.token}`);
    await page.getByRole('button', { name: 'Open' }).click();
    await page.getByText('● ready').waitFor();
    assert.equal(await page.getByRole('heading', { name: 'A token is needed' }).count(), 0);
  }
});

test('an operator who may only read sees everything, and no buttons that change it', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'echo', '--echo');
  await broker.service('echo', ({ workers }) => workers === 1);
  const made = tow(t, 'token', 'new', 'screen', '--read-only', '--admin', broker.socket);
  await made.ended;
  const [token] = made.log.match(/^[\w-]{43}$/m) ?? [];
  assert.ok(token, made.log);
  for (const [hash, buttons] of [[`#token=${token}`, 0], [`#token=${broker.token}`, 1]]) {
    const page = await open(t, broker, { hash });
    await page.getByText('● ready').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Drain…' }).count(), buttons);
    await go(page, 'Services');
    const panel = await details(page, 'echo');
    await panel.getByText('Workers').first().waitFor();
    assert.equal(await panel.getByRole('button', { name: 'Pause…' }).count(), buttons);
  }
});

test('a name that others give to this address is refused', async (t) => {
  const broker = await Server.start(t, 'broker');
  const rebound = await browser('--host-resolver-rules=MAP evil.test 127.0.0.1');
  t.after(() => rebound.close());
  const page = await rebound.newPage();
  const url = broker.url.replace('127.0.0.1', 'evil.test');
  const reply = await page.goto(url);
  assert.equal(reply.status(), 421);
  const asked = await page.evaluate(async (token) => (await fetch('/api/v1/status', { headers: { Authorization: `Bearer ${token}` } })).status, broker.token);
  assert.equal(asked, 421);
});

test('another site can neither read nor change anything', async (t) => {
  const broker = await Server.start(t, 'broker');
  const site = http.createServer((_, reply) => reply.end('<!doctype html><title>another site</title>')).listen(0, '127.0.0.1');
  t.after(() => site.close());
  await once(site, 'listening');
  const page = await (await browser()).newPage();
  t.after(() => page.close());
  await page.goto(`http://127.0.0.1:${site.address().port}/`);
  const attempt = (path, options) => page.evaluate(
    ([url, given]) => fetch(url, given).then((reply) => reply.status, () => 'refused'), [`${broker.url}api/v1/${path}`, options]);
  const headers = { Authorization: `Bearer ${broker.token}`, 'Content-Type': 'application/json' };
  assert.equal(await attempt('status', { headers }), 'refused');
  assert.equal(await attempt('services/cmVzaXpl/pause', { method: 'POST', headers, body: '{}' }), 'refused');
  // This one is sent; the page only doesn't see the answer.
  await attempt('services/cmVzaXpl/pause', { method: 'POST', mode: 'no-cors', body: '{}' });
  assert.deepEqual((await broker.get('status')).paused, []);
});

test('a server that is gone is said to be, and one that is back is shown', async (t) => {
  const broker = await Server.start(t, 'broker');
  const page = await open(t, broker, { allowed: /ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_SOCKET_NOT_CONNECTED|ERR_EMPTY_RESPONSE/ });
  await page.getByText('● ready').waitFor();
  const pid = `pid ${broker.process.pid}`;
  await page.getByText(pid).waitFor();
  broker.process.kill('SIGKILL');
  await page.getByRole('alert').getByText(/can’t be reached.*What you see is of/).waitFor();
  await page.getByText('✕ no answer').waitFor();
  await check(page, 'the page without a server');
  await picture(page, 'no-answer');
  await broker.replace();
  await page.getByText('● ready').waitFor();
  await page.getByText(`pid ${broker.process.pid}`).waitFor();
});
