// Pages of one thing, and the last hour.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Server, check, close, details, folder, go, open, picture, row, until } from './support.mjs';

after(close);

/** A name that is too long for any column. */
const LONG = `service-${'x'.repeat(192)}`;

/** Values of a chart, as its label says them. */
const chart = (page, title) => page.getByRole('img', { name: new RegExp(`^${title}: `) });

test('a service has a page, which Back, reload and bookmarks lead to', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', 'resize', '--echo', '--work-time', '2ms');
  await broker.service('resize', ({ workers }) => workers === 1);
  const [{ peer }] = (await broker.get('workers')).workers;
  broker.tow('call', '--quiet', '--count', '1000000', '--rate', '50', '--ahead', '9', 'resize');
  await broker.service('resize', ({ replied }) => replied > 20);
  const page = await open(t, broker, { at: 'Services' });
  const panel = await details(page, 'resize');
  await panel.getByRole('link', { name: 'Everything about it' }).click();
  const heading = page.getByRole('heading', { level: 1, name: 'Service resize' });
  await heading.waitFor();
  await page.waitForFunction(() => document.title.startsWith('Service resize · '));
  await page.getByText(/^within \d+ ms$/).first().waitFor();
  // After two samples of it.
  await page.getByText('it is', { exact: true }).waitFor();
  await page.getByText(/^\d+\/s$/).first().waitFor({ timeout: 60_000 });
  await check(page, 'a service');
  await picture(page, 'service');
  const address = page.url();
  await page.reload();
  await heading.waitFor();
  // Its worker, and back.
  await page.getByRole('region', { name: 'Workers, table' }).getByRole('button', { name: peer, exact: true }).click();
  await page.getByRole('complementary', { name: 'Workers, details' }).getByRole('link', { name: 'Everything about it' }).click();
  await page.getByRole('heading', { level: 1, name: `Peer ${peer}` }).waitFor();
  await row(page, 'worker of resize').waitFor();
  await page.getByRole('link', { name: 'All of this address' }).click();
  await page.getByRole('heading', { level: 1, name: 'Address 127.0.0.1' }).waitFor();
  await page.getByText('2 now, 0 ended lately').waitFor();
  await check(page, 'an address');
  await picture(page, 'who');
  await page.goBack();
  await page.getByRole('heading', { level: 1, name: `Peer ${peer}` }).waitFor();
  await page.goBack();
  await heading.waitFor();
  assert.equal(page.url(), address);
  await page.getByRole('button', { name: 'Pause…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
  await page.getByText('‖ paused', { exact: true }).waitFor();
  await page.getByText(/ paused resize$/).first().waitFor();
  await page.goBack();
  await page.getByRole('heading', { level: 1, name: 'Services' }).waitFor();
  // As it was left.
  await panel.getByRole('link', { name: 'Everything about it' }).waitFor();
});

test('the page of a service has its requests, and one is ended there', async (t) => {
  const broker = await Server.start(t, 'broker');
  const calls = ['first', 'second'].map((body) => broker.tow('call', '--timeout', '600', 'reports', body));
  await broker.service('reports', ({ waiting }) => waiting === 2);
  const page = await open(t, broker);
  await page.goto(`${broker.url}#service?name=reports`);
  await page.getByText(/^2, the first for/).waitFor();
  await page.getByText('never, at these rates').or(page.getByText('not known yet').first()).first().waitFor();
  const requests = page.getByRole('region', { name: 'Requests, table' });
  await requests.getByRole('row').nth(2).waitFor();
  await requests.getByRole('button', { name: /^\d+\.\d+$/ }).first().click();
  const panel = page.getByRole('complementary', { name: 'Requests, details' });
  await check(page, 'a request');
  await picture(page, 'service-requests');
  await panel.getByRole('button', { name: 'End…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'End', exact: true }).click();
  await page.getByRole('status').getByText(/^✓ Ended request/).waitFor();
  await broker.service('reports', ({ waiting }) => waiting === 1);
  await Promise.race(calls.map((call) => call.ended));
  await page.getByText(/ended a request of reports$/).first().waitFor();
});

test('a service that is gone is said to be, and comes back', async (t) => {
  const broker = await Server.start(t, 'broker');
  const page = await open(t, broker, { allowed: /404/ });
  await page.goto(`${broker.url}#service?name=later`);
  await page.getByText('There is no service later now').waitFor();
  broker.tow('work', 'later', '--echo');
  await page.getByRole('button', { name: 'Pause…' }).waitFor();
  assert.equal(await page.getByText('There is no service later now').isVisible(), false);
});

test('the last hour is there at once after a reload, and after a restart', async (t) => {
  const broker = await Server.start(t, 'broker', '--journal', `${folder(t)}/journal`);
  const worker = broker.tow('work', 'resize', '--echo');
  await broker.service('resize', ({ workers }) => workers === 1);
  const samples = async () => (await broker.get('history')).times.length;
  await until('there are samples', async () => (await samples()) >= 3);
  const page = await open(t, broker);
  await page.getByText(/started, version/).first().waitFor();
  const drawn = () => page.locator('.chart').first().locator('canvas').evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value) => value > 0);
  });
  await page.locator('.chart canvas').first().waitFor();
  assert.ok(await drawn());
  const before = await samples();
  const [reply] = await Promise.all([page.waitForResponse(/api\/v1\/history/), page.reload()]);
  const { times } = await reply.json();
  assert.ok(times.length >= before, 'the first reply has the hour, not only what is new');
  await page.getByRole('img', { name: /^Peers: connected \d, workers \d/ }).waitFor();
  assert.ok(await drawn());
  // A worker that goes, and a restart in good order.
  worker.kill('SIGKILL');
  await page.getByText(/^worker \d+\.\d+ of resize: /).waitFor({ timeout: 60_000 });
  broker.process.kill('SIGTERM');
  await broker.process.ended;
  await broker.run(new URL(broker.url).host);
  await until('the hour before is there', async () => (await samples()) >= before);
  const kinds = (await broker.get('history')).events.map((event) => event.kind);
  assert.deepEqual(kinds.filter((kind) => kind === 'started' || kind === 'stopped'), ['started', 'stopped', 'started']);
  await check(page, 'the overview with events');
  await picture(page, 'lately');
});

test('a name of 200 characters leaves the other columns on the screen', async (t) => {
  const broker = await Server.start(t, 'broker');
  broker.tow('work', LONG, '--echo');
  await broker.service(LONG, ({ workers }) => workers === 1);
  for (const width of [1440, 390]) {
    const page = await open(t, broker, { width });
    for (const [view, head] of [['Services', 'Workers'], ['Workers', 'In progress'], ['Peers', 'Queued']]) {
      await go(page, view);
      await row(page, LONG.slice(0, 20)).first().waitFor();
      const box = await page.getByRole('columnheader', { name: head }).boundingBox();
      if (width > 1000) assert.ok(box.x + box.width <= width, `${head} of ${view} is off the screen`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(over, 0, `${view} is wider than the window of ${width}`);
    }
    await go(page, 'Services');
    assert.equal(await row(page, LONG).locator('.wire').first().getAttribute('title'), LONG);
    await picture(page, `long-${width}`);
    const panel = await details(page, LONG);
    await panel.getByRole('heading', { name: LONG }).waitFor();
    await panel.getByRole('link', { name: 'Everything about it' }).click();
    await page.getByRole('heading', { level: 1, name: `Service ${LONG}` }).waitFor();
    await check(page, `a long name, ${width}`);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.equal(over, 0, `its page is wider than the window of ${width}`);
    await picture(page, `long-service-${width}`);
  }
});

test('problems are in the title and the icon', async (t) => {
  const broker = await Server.start(t, 'broker');
  const page = await open(t, broker);
  const icon = () => page.locator('#icon').getAttribute('href');
  await until('there is an icon', async () => (await icon()).length > 20);
  const calm = await icon();
  broker.tow('call', '--timeout', '600', 'reports', 'x');
  await page.waitForFunction(() => document.title.startsWith('(1) '));
  assert.notEqual(await icon(), calm);
  await page.getByText(/reports: no worker; 1 waits/).first().waitFor();
});

test('a tab that is opened from another one needs no token, and a refused token isn’t passed on', async (t) => {
  const broker = await Server.start(t, 'broker');
  const page = await open(t, broker, { allowed: /401/ });
  await page.getByText('● ready').waitFor();
  const [other] = await Promise.all([
    page.context().waitForEvent('page'),
    page.getByRole('link', { name: /^Peers/ }).click({ modifiers: ['Control'] }),
  ]);
  await other.getByRole('heading', { level: 1, name: 'Peers' }).waitFor();
  await other.getByText('● ready').waitFor();
  assert.equal(await page.getByRole('heading', { level: 1, name: 'Overview' }).count(), 1);
  await other.close();
  await page.evaluate(() => sessionStorage.setItem('towpath-token', 'wrong'));
  await page.getByRole('heading', { name: 'A token is needed' }).waitFor();
  assert.equal(await page.getByText('● ready').isVisible(), false);
  const alone = await page.context().newPage();
  await alone.goto(broker.url);
  await alone.getByRole('heading', { name: 'A token is needed' }).waitFor();
  // The first that is let in lets in the other.
  await alone.getByLabel(/^Token/).fill(broker.token);
  await alone.getByRole('button', { name: 'Open' }).click();
  await alone.getByText('● ready').waitFor();
  await page.getByText('● ready').waitFor();
});
