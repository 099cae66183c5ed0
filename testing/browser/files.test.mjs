// The page of a file server.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { Server, check, close, details, folder, go, open, picture, row, tow, until } from './support.mjs';

after(close);

const HOSTILE = '<img src=x onerror=alert(1)>\u202egnp.bin';
const SHOWN = '<img src=x onerror=alert(1)>\\u{202e}gnp.bin';

/** A folder with files that take a while to read slowly. */
function tree(t) {
  const root = folder(t);
  for (const name of [HOSTILE, 'video.bin']) fs.writeFileSync(path.join(root, name), Buffer.alloc(48 << 20, 7));
  fs.writeFileSync(path.join(root, 'small.txt'), 'small');
  return root;
}

/** A client that reads nothing of what it is sent. */
async function stalled(t, server, name) {
  const client = tow(t, 'get', '--quiet', `${server.endpoint}/${encodeURIComponent(name)}`, '-');
  client.stdout.pause();
  await until(`a transfer of ${name} waits`, async () => (await server.get('transfers')).transfers.some((one) => one.path === name && one.waits_for));
  return client;
}

test('a transfer is shown with one cause for its stall, and paths are text', async (t) => {
  const server = await Server.start(t, 'serve', tree(t));
  await stalled(t, server, HOSTILE);
  await stalled(t, server, 'video.bin');
  const page = await open(t, server, { at: 'Transfers' });
  assert.equal(await page.getByRole('link', { name: 'Followers' }).count(), 0, 'it publishes nothing');
  await row(page, 'video.bin').getByText(/the client is frozen|the client reads slowly|no credit/).waitFor();
  await row(page, SHOWN).waitFor();
  assert.equal(await page.locator('img').count(), 0);
  const panel = await details(page, SHOWN);
  await panel.getByRole('heading', { name: SHOWN }).waitFor();
  await panel.getByText('Slow because of').waitFor();
  await picture(page, 'hostile-path');

  await go(page, 'Overview');
  await page.getByRole('img', { name: /^Transfers: transfers 2, waiting 2/ }).waitFor();
  await check(page, 'the overview');
  // A phone has the cause, too.
  await page.setViewportSize({ width: 390, height: 800 });
  await go(page, 'Transfers');
  await page.getByText(/the client is frozen|the client reads slowly|no credit/).first().waitFor();
  await check(page, 'transfers on a phone');
  await picture(page, 'transfers-phone');
  await page.setViewportSize({ width: 1280, height: 800 });
  await panel.getByRole('button', { name: 'Disconnect…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Disconnect' }).click();
  await page.getByRole('status').getByText('Disconnected peer').waitFor();
});

test('a file server is drained', async (t) => {
  const server = await Server.start(t, 'serve', tree(t));
  await stalled(t, server, 'video.bin');
  const page = await open(t, server);
  await page.getByRole('button', { name: 'Drain…' }).click();
  await page.getByRole('dialog', { name: 'Drain this server?' }).getByRole('button', { name: 'Drain' }).click();
  await page.getByText('▼ draining, 1 left').waitFor();
  assert.equal((await server.get('status')).draining, true);
});

test('followers are shown with their lag, and versions with who has them', async (t) => {
  const root = folder(t);
  fs.writeFileSync(path.join(root, 'model.bin'), 'first');
  const server = await Server.start(t, 'serve', root, '--watch', '--state', folder(t), '--accept-publish');
  tow(t, 'follow', '--versions', '--name', 'replica', `${server.endpoint}/`, folder(t));
  await until('it follows', async () => (await server.get('followers')).followers.length === 1);
  const publish = tow(t, 'publish', `${server.endpoint}/`, 'v1');
  await publish.ended;
  assert.equal(publish.exitCode, 0, publish.log);
  await until('it has the version', async () => (await server.get('versions')).versions[0]?.holders === 1);
  const page = await open(t, server, { at: 'Followers' });
  await row(page, 'replica').getByText('✓ up to date').waitFor();
  await check(page, 'followers');
  await picture(page, 'followers');
  await go(page, 'Versions');
  await check(page, 'versions');
  await picture(page, 'versions');
  await row(page, 'v1').getByRole('link', { name: 'v1' }).click();
  await page.getByRole('heading', { level: 1, name: 'Version v1' }).waitFor();
  await row(page, 'replica').getByText('✓ yes').waitFor();
  await check(page, 'a version');
  await picture(page, 'version');
  await go(page, 'Followers');
  const follower = await details(page, 'replica');
  await follower.getByRole('link', { name: 'Everything about it' }).click();
  await page.getByRole('heading', { level: 1, name: /^Peer / }).waitFor();
  await page.getByRole('img', { name: /^Changes behind: lacks 0/ }).waitFor({ timeout: 60_000 });
  await check(page, 'a follower');
  await picture(page, 'follower');
});

test('axe finds nothing in any view of a file server', async (t) => {
  const root = tree(t);
  fs.mkdirSync(path.join(root, 'inbox'));
  const server = await Server.start(t, 'serve', root, '--watch', '--accept-push', 'inbox');
  await stalled(t, server, 'video.bin');
  tow(t, 'follow', `${server.endpoint}/small.txt`, folder(t));
  await tow(t, 'get', '--quiet', `${server.endpoint}/missing`, folder(t)).ended;
  const page = await open(t, server);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    for (const view of ['Overview', 'Peers', 'Transfers', 'Followers', 'Versions', 'Failures', 'Disconnected', 'Blocked', 'Audit']) {
      await go(page, view);
      await check(page, `${view} ${colorScheme}`);
      await picture(page, `serve-${view.toLowerCase()}-${colorScheme}`);
    }
  }
  await go(page, 'Failures');
  await row(page, 'missing').filter({ hasText: 'not-found' }).waitFor();
  await go(page, 'Followers');
  await row(page, 'small.txt').waitFor();
});
