// Makes the pictures of docs/guide/images, in about three minutes: in target/browser, after `cargo xtask test --only browser`,
// TOW=../debug/tow PICTURES=../../docs/guide/images node pictures.mjs
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Server, TOW, close, details, folder, open, picture, tow, until } from './support.mjs';

const MINUTES = Number(process.env.MINUTES ?? 2.5);

const cleanups = [];
const t = { after: (what) => cleanups.push(what) };

/** Shows the page of one thing. */
const lead = (page, hash) => page.evaluate((to) => { location.hash = to; }, hash);

/** Requests at a rate that changes. */
async function load(broker, service, rates, end) {
  for (let index = 0; Date.now() < end; index++) {
    const call = broker.tow('call', '--quiet', '--count', '100000', '--rate', rates[index % rates.length], '--ahead', '60', '--clients', '2', service);
    await sleep(12_000);
    call.kill('SIGTERM');
    await call.ended;
  }
}

async function ofBroker() {
  const broker = await Server.start(t, 'broker', '--attempts', '1', '--journal', `${folder(t)}/journal`);
  for (let index = 0; index < 3; index++) {
    const dying = broker.tow('work', 'transcode', '--', 'sleep', '100');
    const call = broker.tow('call', 'transcode', 'kills its worker');
    await until('a worker has it', async () => (await broker.get('workers')).workers.some(({ held }) => held === 1));
    dying.kill('SIGKILL');
    await call.ended;
  }
  for (const [service, time] of [['resize', 9], ['resize', 12], ['resize', 15], ['thumbnails', 4], ['thumbnails', 5], ['ocr', 20]]) {
    broker.tow('work', service, '--echo', '--work-time', `${time}ms`);
  }
  for (let index = 0; index < 14; index++) broker.tow('call', '--timeout', '600', 'transcode', `video ${index}`);
  const page = await open(t, broker, { height: 720 });
  const dark = await open(t, broker, { at: 'Services', dark: true, height: 560 });
  const end = Date.now() + MINUTES * 60_000;
  const loads = [load(broker, 'resize', [120, 260, 190, 340], end), load(broker, 'thumbnails', [60, 20, 90], end), load(broker, 'ocr', [8, 12], end)];
  await sleep(MINUTES * 60_000 - 20_000);
  const service = await open(t, broker, { height: 900 });
  await lead(service, `#service?${new URLSearchParams({ name: 'resize' })}`);
  await service.getByRole('heading', { level: 1, name: 'resize' }).waitFor();
  await sleep(5000);
  await picture(service, 'page-service');
  const [client] = (await broker.get('peers')).peers.filter(({ role }) => role === 'client');
  const who = await open(t, broker, { height: 720 });
  await lead(who, `#who?${new URLSearchParams({ peer: client.id })}`);
  await who.getByRole('button', { name: 'Block…' }).first().click();
  await who.getByRole('dialog').waitFor();
  await picture(who, 'page-block');
  const panel = await details(dark, /^transcode/);
  await panel.getByRole('button', { name: 'Purge…' }).click();
  await dark.getByRole('dialog').waitFor();
  await picture(dark, 'page-purge');
  await dark.getByRole('dialog').getByRole('button', { name: 'Purge' }).click();
  for (let index = 0; index < 14; index++) broker.tow('call', '--timeout', '600', 'transcode', `video ${index}`);
  await page.getByText(/purged transcode/).first().waitFor();
  await page.getByText('no worker').first().waitFor();
  await picture(page, 'page-broker');
  await Promise.all(loads);
}

async function ofFiles() {
  const root = folder(t);
  for (const name of ['backup/db.tar.zst', 'iso/debian-13.iso', 'models/weights.bin', 'video/keynote.mov']) {
    fs.mkdirSync(path.dirname(path.join(root, name)), { recursive: true });
    fs.writeFileSync(path.join(root, name), Buffer.alloc(160 << 20, name));
  }
  const server = await Server.start(t, 'serve', root);
  const get = (name, ...options) => tow(t, 'get', '--quiet', ...options, `${server.endpoint}/${name}`, folder(t));
  get('iso/debian-13.iso', '--bwlimit', '9M');
  get('models/weights.bin', '--bwlimit', '5M');
  get('backup/db.tar.zst', '--bwlimit', '2M');
  tow(t, 'get', '--quiet', `${server.endpoint}/video/keynote.mov`, '-').stdout.pause();
  const page = await open(t, server, { at: 'Transfers', height: 420, width: 1100 });
  await sleep(9000);
  await picture(page, 'page-transfers');
}

/** A version that one machine has, one is fetching slowly, and one has no space for. */
async function ofVersions() {
  const root = folder(t);
  const publish = (label, size) => {
    fs.mkdirSync(path.join(root, 'model'), { recursive: true });
    fs.writeFileSync(path.join(root, 'model/weights.bin'), Buffer.alloc(size, label));
    return tow(t, 'publish', `${server.endpoint}/model`, label).ended;
  };
  const server = await Server.start(t, 'serve', '--watch', '--settle', '50ms', '--state', folder(t), '--accept-publish', root);
  await publish('v41', 1 << 20);
  const follow = (name, ...options) => ['follow', '--versions', '--name', name, ...options, `${server.endpoint}/model`];
  tow(t, ...follow('gpu-1'), folder(t));
  tow(t, ...follow('gpu-2'), folder(t));
  tow(t, ...follow('edge-7', '--bwlimit', '1M'), folder(t));
  const small = folder(t);
  const full = spawn('unshare', ['-m', 'sh', '-c', 'mount -t tmpfs -o size=8m tmpfs "$0" && exec "$@"', small, TOW, ...follow('db-3'), small], { stdio: 'ignore' });
  t.after(() => full.kill('SIGKILL'));
  await until('all have the first', async () => (await server.get('versions')).versions[0]?.holders === 4);
  await publish('v42', 48 << 20);
  const page = await open(t, server, { at: 'Versions', height: 640, width: 1100 });
  await until('one fails', async () => (await server.get('followers')).followers.some(({ state }) => state === 'failing'));
  const newest = (await server.get('versions')).versions.at(-1);
  await lead(page, `#version?${new URLSearchParams({ version: newest.version })}`);
  await page.getByText('no space').first().waitFor();
  await sleep(3000);
  await picture(page, 'page-version');
}

await ofVersions();
await ofFiles();
await ofBroker();
while (cleanups.length) await cleanups.pop()();
await close();
