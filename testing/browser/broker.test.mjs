// The page of a broker.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Dealer } from 'zeromq';
import { Server, check, close, details, folder, go, open, peer, picture, row, until } from './support.mjs';

after(close);

/** Text that would do something if it were HTML, and turn around what follows it. */
const HOSTILE = '<img src=x onerror="document.title=\'hacked\'">\u202egnp';
const SHOWN = '<img src=x onerror="document.title=\'hacked\'">\\u{202e}gnp';

/** Requests that wait, a client for each. */
async function waiting(broker, service, number) {
  for (let index = 0; index < number; index++) broker.tow('call', '--timeout', '600', service, `request ${index}`);
  return broker.service(service, ({ waiting }) => waiting === number);
}

test('a peer that is clicked can be disconnected, and its client connects again', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'echo', '--echo');
  await broker.service('echo', ({ workers }) => workers === 1);
  const [worker] = (await broker.get('peers')).peers;
  const page = await open(t, broker, { at: 'Peers' });
  const panel = await details(page, worker.id);
  await panel.getByText(worker.address).waitFor();
  await panel.getByRole('button', { name: 'Disconnect…' }).click();
  const dialog = page.getByRole('dialog', { name: `Disconnect peer ${worker.id}?` });
  await dialog.getByLabel(/Reason/).fill('maintenance');
  await check(page, 'the dialog');
  await dialog.getByRole('button', { name: 'Disconnect' }).click();
  await page.getByRole('status').getByText(`Disconnected peer ${worker.id}.`).waitFor();
  await panel.getByText('No longer in this list.').waitFor();
  await go(page, 'Disconnected');
  await row(page, 'maintenance').filter({ hasText: worker.id }).waitFor();
  await go(page, 'Peers');
  await row(page, 'worker of echo').waitFor();
  const [again] = (await broker.get('workers')).workers;
  assert.notEqual(again.peer, worker.id);
});

test('through which broker of a cell a peer is connected is a column, if any is', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'echo', '--echo');
  await broker.service('echo', ({ workers }) => workers === 1);
  const page = await open(t, broker, { at: 'Peers' });
  const worker = row(page, 'worker of echo');
  const head = page.getByRole('columnheader', { name: 'Through' });
  await worker.waitFor();
  assert.equal(await head.count(), 0);
  // As the leader of a cell says it of a peer that another broker relays.
  await page.route(/\/api\/v1\/peers(\?|$)/, async (route) => {
    const response = await route.fetch();
    const reply = await response.json();
    for (const one of reply.peers) one.through = 'tcp://b:5555';
    await route.fulfill({ response, json: reply });
  });
  await worker.getByRole('cell', { name: 'tcp://b:5555' }).waitFor();
  await head.waitFor();
  await page.unrouteAll({ behavior: 'wait' });
  await head.waitFor({ state: 'detached' });
});

test('a peer that is blocked stays out until it is unblocked, and the page says what was done', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'echo', '--echo');
  await broker.service('echo', ({ workers }) => workers === 1);
  const [worker] = (await broker.get('peers')).peers;
  const page = await open(t, broker, { at: 'Peers' });
  const panel = await details(page, worker.id);
  await panel.getByRole('button', { name: 'Block…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Block this peer?' });
  assert.deepEqual(await dialog.getByLabel('Whom').locator('option').allTextContents(), ['address 127.0.0.1']);
  await dialog.getByLabel('How long').selectOption('a day');
  await dialog.getByLabel(/Reason/).fill('floods');
  await check(page, 'the dialog');
  await dialog.getByRole('button', { name: 'Block' }).click();
  await page.getByRole('status').getByText('Blocked 127.0.0.1; 1 peer disconnected.').waitFor();
  broker.tow('call', 'echo', 'hello');
  broker.tow('call', 'echo', 'hello');
  await go(page, 'Disconnected');
  await row(page, 'blocked by the operator: floods (').filter({ hasText: 'attempts)' }).waitFor();
  await until('it was refused', async () => (await broker.get('blocked')).blocked[0].refused > 0);
  await go(page, 'Blocked');
  await row(page, 'floods').filter({ hasText: 'operator' }).waitFor();
  const block = await details(page, '127.0.0.1');
  await block.getByRole('button', { name: 'Unblock…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Unblock' }).click();
  await page.getByRole('status').getByText('Unblocked 127.0.0.1.').waitFor();
  await page.getByText('Nobody is blocked.').waitFor();
});

test('a person with several connections is blocked on one page', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'echo', '--echo');
  broker.tow('work', 'echo', '--echo');
  await broker.service('echo', ({ workers }) => workers === 2);
  const page = await open(t, broker);
  await page.goto(`${broker.url}#who?address=127.0.0.1`);
  await page.getByText('2 now').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Disconnect…' }).count(), 0);
  await page.getByRole('button', { name: 'Block…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Block' }).click();
  await page.getByRole('status').getByText('Blocked 127.0.0.1; 2 peers disconnected.').waitFor();
});

test('a queue that grows is purged of what waits then, and the number is said', async (t) => {
  const broker = await Server.start(t, 'broker');
  await waiting(broker, 'resize', 2);
  const page = await open(t, broker, { at: 'Services' });
  const panel = await details(page, 'resize');
  await panel.getByRole('button', { name: 'Purge…' }).click();
  const dialog = page.getByRole('dialog', { name: 'Purge resize?' });
  await dialog.getByText('2 requests of resize wait').waitFor();
  broker.tow('call', '--timeout', '600', 'resize', 'one more');
  await broker.service('resize', (service) => service.waiting === 3);
  await dialog.getByRole('button', { name: 'Purge', exact: true }).click();
  await page.getByRole('status').getByText('Purged 3 requests of resize.').waitFor();
  await until('none waits', async () => !(await broker.get('services')).services.some((service) => service.waiting > 0));
  await go(page, 'Audit');
  await row(page, 'purge').filter({ hasText: 'done' }).waitFor();
  await check(page, 'the audit');
  await picture(page, 'audit');
});

test('a service is paused, loudly, and resumed', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'resize', '--echo');
  await broker.service('resize', ({ workers }) => workers === 1);
  const page = await open(t, broker, { at: 'Services' });
  const panel = await details(page, 'resize');
  await panel.getByRole('button', { name: 'Pause…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
  await row(page, 'resize').getByText('‖ paused').waitFor();
  await broker.service('resize', ({ paused }) => paused);
  const call = broker.tow('call', 'resize', 'hello');
  await broker.service('resize', (service) => service.waiting === 1);
  await page.getByRole('link', { name: /^Services ▲/ }).waitFor();
  await go(page, 'Overview');
  await page.getByText('▲ 1 problem').waitFor();
  await page.getByRole('link', { name: 'Show: resize', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Service resize' }).waitFor();
  await page.getByText('‖ paused', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Resume…', exact: true }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click();
  await page.getByRole('button', { name: 'Pause…', exact: true }).waitFor();
  await call.ended;
  assert.equal(call.exitCode, 0, call.log);
  await go(page, 'Overview');
  await page.getByText('✓ No problems known').waitFor();
});

test('a service without a worker is the first thing to see, and purged there', async (t) => {
  const broker = await Server.start(t, 'broker');
  await waiting(broker, 'reports', 2);
  const page = await open(t, broker);
  await page.getByText('✕ reports').waitFor();
  await page.getByText(/^no worker; 2 wait, oldest \d+ s$/).waitFor();
  await page.getByText('▲ 1 problem').waitFor();
  await page.waitForFunction(() => document.title.startsWith('(1) Overview · tow broker on '));
  await check(page, 'a problem');
  await picture(page, 'problem');
  await page.getByRole('link', { name: 'Show: reports', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Service reports' }).waitFor();
  await page.getByText(/^no worker; 2 wait/).waitFor();
  await check(page, 'a service');
  await go(page, 'Overview');
  await page.getByRole('button', { name: 'Purge… reports' }).click();
  await page.getByRole('dialog', { name: 'Purge reports?' }).getByRole('button', { name: 'Purge', exact: true }).click();
  await page.getByRole('status').getByText('Purged 2 requests of reports.').waitFor();
  await page.getByText('✓ No problems known').waitFor();
  await page.waitForFunction(() => document.title.startsWith('Overview · tow broker on '));
});

test('a problem is muted for a time, and no part of the title', async (t) => {
  const broker = await Server.start(t, 'broker');
  await waiting(broker, 'nightly', 1);
  const page = await open(t, broker);
  await page.getByText('1 problem').waitFor();
  await page.getByRole('button', { name: 'Mute… nightly' }).click();
  const dialog = page.getByRole('dialog', { name: 'Mute nightly?' });
  await dialog.getByLabel('How long').selectOption('4 hours');
  await check(page, 'the dialog');
  await dialog.getByRole('button', { name: 'Mute' }).click();
  await page.getByText('No problems known').waitFor();
  await page.getByText(/Muted: no_worker of nightly for another (4 h|3 h)/).waitFor();
  await until('the title has no number', async () => !(await page.title()).startsWith('('));
  await page.getByRole('button', { name: 'Unmute… nightly' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Unmute' }).click();
  await page.getByText('1 problem').waitFor();
});

test('a broker is drained, and takes requests again', async (t) => {
  const broker = await Server.start(t, 'broker');
  await waiting(broker, 'resize', 1);
  const page = await open(t, broker);
  await page.getByRole('button', { name: 'Drain…' }).click();
  await page.getByRole('dialog', { name: 'Drain this broker?' }).getByRole('button', { name: 'Drain' }).click();
  await page.getByRole('status').getByText('Draining: 1 request left.').waitFor();
  await page.getByText('▼ draining, 1 left').waitFor();
  await page.getByText('resize: 1, no worker serves it').waitFor();
  await page.getByText('Restart now: ').waitFor();
  assert.equal((await broker.get('status')).draining, true);
  await page.getByRole('button', { name: 'Stop draining…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Stop draining' }).click();
  await page.getByText('● ready').waitFor();
  assert.equal((await broker.get('status')).draining, false);
});

test('names of services are text, whatever they are', async (t) => {
  const broker = await Server.start(t, 'broker');
  const worker = new Dealer({ linger: 0 });
  t.after(() => worker.close());
  worker.connect(broker.endpoint);
  await worker.send(['', 'MDPW01', '\x01', HOSTILE]);
  await broker.service(HOSTILE, ({ workers }) => workers === 1);
  await waiting(broker, `${HOSTILE}2`, 1);
  const page = await open(t, broker);
  for (const view of ['Peers', 'Services', 'Workers']) {
    await go(page, view);
    await row(page, SHOWN).first().waitFor();
    assert.ok(!(await page.content()).includes('\u202e'), `${view}: it is escaped`);
    assert.equal(await page.locator('img').count(), 0, `${view}: it is no element`);
  }
  await go(page, 'Services');
  const panel = await details(page, `${SHOWN}2`);
  await panel.getByRole('button', { name: 'Purge…' }).click();
  const dialog = page.getByRole('dialog', { name: `Purge ${SHOWN}2?` });
  await picture(page, 'hostile');
  await dialog.getByRole('button', { name: 'Purge', exact: true }).click();
  await page.getByRole('status').getByText(`Purged 1 request of ${SHOWN}2.`).waitFor();
  await page.waitForFunction(() => /^(\(\d\) )?Services/.test(document.title));
});

test('services whose names are not UTF-8 look different, and each is paused and purged', async (t) => {
  const broker = await Server.start(t, 'broker');
  for (const name of ['//4=', '/v8=']) broker.tow('call', '--timeout', '600', '--b64', name, 'a request');
  await until('both wait', async () => (await broker.get('services')).services.filter(({ waiting }) => waiting === 1).length === 2);
  const state = async (name) => (await broker.get('services')).services.find((service) => service.service_b64 === name);
  const page = await open(t, broker, { at: 'Services' });
  await row(page, '\\xff\\xfe').waitFor();
  const panel = await details(page, '\\xfe\\xff');
  await panel.getByRole('button', { name: 'Pause…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
  await page.getByRole('status').getByText('Paused \\xfe\\xff.').waitFor();
  assert.deepEqual([(await state('/v8=')).paused, (await state('//4=')).paused], [true, false]);
  await panel.getByRole('button', { name: 'Purge…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Purge', exact: true }).click();
  await page.getByRole('status').getByText('Purged 1 request of \\xfe\\xff.').waitFor();
  assert.equal((await state('//4=')).waiting, 1);
});

test('dead letters are requeued and dropped', async (t) => {
  const broker = await Server.start(t, 'broker', '--attempts', '1', '--journal', `${folder(t)}/journal`);
  for (const body of ['first', 'second']) {
    const dying = broker.tow('work', 'resize', '--', 'sleep', '100');
    const call = broker.tow('call', 'resize', body);
    await until('a worker has it', async () => (await broker.get('workers')).workers.some(({ held }) => held === 1));
    dying.kill('SIGKILL');
    await call.ended;
  }
  const page = await open(t, broker);
  await page.getByRole('link', { name: 'Show: resize' }).click();
  const panel = await details(page, 'resize');
  await panel.getByRole('table').getByRole('row').nth(2).waitFor();
  assert.equal(await panel.getByRole('cell', { name: "its worker's connection ended" }).count(), 2);
  await check(page, 'dead letters');
  await picture(page, 'dead-letters');
  await panel.getByRole('button', { name: 'Requeue…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Requeue 2 requests' }).click();
  await page.getByRole('status').getByText('Requeued 2 requests of resize.').waitFor();
  await page.getByText('There are no dead letters.').waitFor();
  await broker.service('resize', (service) => service.waiting === 2);
});

test('a thousand peers are listed in pages, and searched and sorted at the server', async (t) => {
  const broker = await Server.start(t, 'broker', '--max-peers-per-address', '2000', '--heartbeat', '60');
  for (let index = 0; index < 1000; index++) peer(t, broker.endpoint);
  await until('all are connected', async () => (await broker.get('status')).peers === 1000);
  const page = await open(t, broker, { at: 'Peers' });
  await page.getByText('200 shown, page 1; there are more').waitFor();
  await page.getByRole('button', { name: 'Next page' }).click();
  await page.getByText('200 shown, page 2; there are more').waitFor();
  await row(page, /^250\.0/).waitFor();
  // The server looks at all, beyond the page that is shown.
  await page.getByLabel('Search').fill('987.0');
  await page.getByText(/^1 shown$/).waitFor();
  await row(page, /^987\.0/).waitFor();
  await page.reload();
  await page.getByText(/^1 shown$/).waitFor();
  assert.equal(await page.getByLabel('Search').inputValue(), '987.0');
  await page.getByLabel('Search').fill('no such peer');
  await page.getByText('Nothing matches the search.').waitFor();
  await page.getByLabel('Search').fill('');
  await page.getByText('200 shown, page 1; there are more').waitFor();
  const head = page.getByRole('columnheader', { name: 'Peer' }).getByRole('button');
  await head.click();
  await page.getByText('200 of 1,000 shown, page 1; there are more').waitFor();
  await head.click();
  await row(page, /^999\.0/).waitFor();
  assert.match(await page.locator('tbody tr').first().innerText(), /^999\.0/);

  // Rows are the same elements after the next replies, and keep the focus.
  await row(page, /^990\.0/).getByRole('button').focus();
  const updated = await page.locator('#updated').innerText();
  await page.waitForFunction((before) => document.getElementById('updated').textContent !== before, updated);
  await page.keyboard.press('ArrowDown');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), '989.0');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Peer 989.0' }).waitFor();
  await page.keyboard.press('Escape');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), '989.0', 'focus is back');
  // Sorted among 200 only: it has no member of the server.
  await page.getByRole('columnheader', { name: 'Out' }).getByRole('button').click();
  await page.getByText('200 shown, page 1; there are more; sorted among these').waitFor();
  broker.tow('work', 'echo', '--echo');
  await broker.service('echo', ({ workers }) => workers === 1);
  await page.getByLabel('Search').fill('ECHO');
  await row(page, 'worker of echo').waitFor();
  await page.getByRole('button', { name: 'Pause updates' }).click();
  await page.getByText('paused', { exact: true }).waitFor();
});

test('axe finds nothing in any view, light or dark, wide or narrow', async (t) => {
  const broker = await Server.start(t, 'broker', '--attempts', '1', '--journal', `${folder(t)}/journal`);
  const dying = broker.tow('work', 'transcode', '--', 'sleep', '100');
  broker.tow('call', 'transcode', 'kills its worker');
  await until('a worker has it', async () => (await broker.get('workers')).workers.some(({ held }) => held === 1));
  dying.kill('SIGKILL');
  await until('it is kept', async () => (await broker.get('status')).counters.dead_letters === 1);
  for (const time of [4, 7]) broker.tow('work', 'resize', '--echo', '--work-time', `${time}ms`);
  broker.tow('work', 'thumbnails', '--echo');
  await waiting(broker, 'transcode', 3);
  broker.tow('call', '--quiet', '--count', '1000000', '--rate', '180', '--ahead', '9', '--clients', '3', 'resize');
  const views = ['Overview', 'Peers', 'Services', 'Workers', 'Dead letters', 'Journal', 'Disconnected', 'Blocked', 'Audit'];
  const page = await open(t, broker);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    const sizes = colorScheme === 'light' ? [[1280, 800, ''], [390, 780, '-phone']] : [[1280, 800, '']];
    for (const [width, height, size] of sizes) {
      await page.setViewportSize({ width, height });
      for (const view of views) {
        await go(page, view);
        if (view === 'Services') await details(page, 'transcode');
        await check(page, `${view} ${colorScheme} ${width}`);
        await picture(page, `broker-${view.toLowerCase().replace(' ', '-')}-${colorScheme}${size}`);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.equal(over, 0, `${view} is wider than the window of ${width}`);
        if (view === 'Services') await page.keyboard.press('Escape');
      }
    }
  }
});
