// Real servers and peers, and a browser to look at them.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { chromium } from 'playwright-core';
import axe from 'axe-core';

export const TOW = process.env.TOW ?? 'tow';
const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';

/** Where pictures of all views go. */
export const PICTURES = process.env.PICTURES ?? path.join(os.tmpdir(), 'towpath-page');

/** The page's own files instead of those in the binary: for working on the page. */
const PAGE = process.env.PAGE;

const DEADLINE = 20_000;

/** Waits until this is true, or isn't null, and returns it. */
export async function until(what, condition) {
  const end = Date.now() + DEADLINE;
  for (;;) {
    const found = await condition();
    if (found) return found;
    assert.ok(Date.now() < end, `waited ${DEADLINE} ms until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}

const stacks = new WeakMap();

/** Does this after the test, and before what was to be done after it until now. */
function after(t, what) {
  if (!stacks.has(t)) {
    const stack = [];
    stacks.set(t, stack);
    t.after(async () => {
      while (stack.length) await stack.pop()();
    });
  }
  stacks.get(t).push(what);
}

/** A process of tow, which ends with the test. */
export function tow(t, ...args) {
  const child = spawn(TOW, args.map(String), { stdio: ['ignore', 'pipe', 'pipe'] });
  child.log = '';
  child.stdout.on('data', (data) => { child.log += data; });
  child.stderr.on('data', (data) => { child.log += data; });
  child.ended = new Promise((resolve) => child.once('close', resolve));
  after(t, async () => {
    child.kill('SIGKILL');
    await child.ended;
  });
  return child;
}

/** A folder that is removed after the test. */
export function folder(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'towpath-'));
  after(t, () => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

/** A file server or a broker with its page. */
export class Server {
  static async start(t, program, ...args) {
    const server = new Server();
    server.t = t;
    server.folder = folder(t);
    server.socket = path.join(server.folder, 'admin.sock');
    server.command = [program, '--bind', '127.0.0.1:0', ...args];
    await server.run('127.0.0.1:0');
    return server;
  }

  /** Starts the process, with its page at this address. */
  async run(address) {
    const file = path.join(this.folder, 'admin.token');
    this.process = tow(this.t, ...this.command, '--admin', address, '--admin-socket', this.socket, '--admin-token-file', file);
    const status = await until(`${this.command} is ready`, async () => {
      assert.equal(this.process.exitCode, null, this.process.log);
      const status = await this.get('status').catch(() => null);
      return status?.state === 'ready' && status;
    });
    this.endpoint = status.endpoints[0];
    this.url = status.page;
    this.token = fs.readFileSync(file, 'utf8').trim();
  }

  /** Kills the process, and starts another one in its place. */
  async replace() {
    this.process.kill('SIGKILL');
    await this.process.ended;
    await this.run(new URL(this.url).host);
  }

  /** Asks on the local socket, beside the browser. */
  get(what) {
    return new Promise((resolve, reject) => {
      const options = { socketPath: this.socket, path: `/api/v1/${what}`, headers: { Host: 'localhost' } };
      http.get(options, (reply) => {
        let text = '';
        reply.on('data', (data) => { text += data; });
        reply.on('end', () => (reply.statusCode === 200 ? resolve(JSON.parse(text)) : reject(new Error(text))));
        reply.on('error', reject);
      }).on('error', reject);
    });
  }

  /** A process of tow that connects to this broker. */
  tow(command, ...args) {
    return tow(this.t, command, '--connect', this.endpoint, ...args);
  }

  /** The service of this name, when it is as it should be. */
  service(name, is) {
    return until(`service ${name}: ${is}`, async () => {
      const { services } = await this.get(`services?service=${encodeURIComponent(name)}`);
      return services.find(is);
    });
  }
}

let shared = null;

/** The browser, one for all tests of a process. */
export async function browser(...more) {
  const launch = (args) => chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage', ...args] });
  if (more.length) return launch(more);
  shared ??= await launch([]);
  return shared;
}

export async function close() {
  await shared?.close();
}

/** Opens a server's page. When the test ends the console must have no errors but those that are allowed. */
export async function open(t, server, { at = '', dark = false, width = 1280, height = 800, allowed = null, hash = null } = {}) {
  const context = await (await browser()).newContext({
    colorScheme: dark ? 'dark' : 'light', viewport: { width, height }, deviceScaleFactor: width < 600 ? 2 : 1, reducedMotion: 'reduce',
  });
  const page = await context.newPage();
  page.setDefaultTimeout(DEADLINE);
  if (PAGE) await page.route((url) => !url.pathname.startsWith('/api/'), fromFolder);
  const errors = [];
  page.on('pageerror', (error) => errors.push(String(error.stack ?? error)));
  page.on('console', (message) => { if (['error', 'warning'].includes(message.type())) errors.push(`${message.text()} ${message.location().url}`); });
  after(t, async () => {
    await context.close();
    assert.deepEqual(errors.filter((error) => !allowed?.test(error)), [], 'errors in the console');
  });
  await page.goto(server.url + (hash ?? `#token=${server.token}`));
  if (hash === null) {
    await page.getByRole('navigation').waitFor();
    if (at) await go(page, at);
  }
  return page;
}

/** Shows a view. */
export async function go(page, title) {
  await page.getByRole('link', { name: new RegExp(`^${title}`) }).click();
  await page.getByRole('heading', { level: 1, name: title }).waitFor({ state: 'attached' });
}

/** The row of a table that has this text. */
export function row(page, text) {
  return page.locator('tbody tr').filter({ hasText: text });
}

/** Opens a row's details. */
export async function details(page, text) {
  await row(page, text).first().getByRole('button').click();
  return page.getByRole('complementary', { name: 'Details' });
}

/** Fails if axe finds something in the page as it is. */
export async function check(page, what) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const found = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join('; ')}`);
  assert.deepEqual(found, [], `what axe finds in ${what}`);
}

/** Keeps a picture of the page as it is. */
export async function picture(page, name) {
  fs.mkdirSync(PICTURES, { recursive: true });
  await page.screenshot({ path: path.join(PICTURES, `${name}.png`), animations: 'disabled' });
}

async function fromFolder(route) {
  const name = new URL(route.request().url()).pathname.slice(1) || 'index.html';
  const type = { html: 'text/html', css: 'text/css', js: 'text/javascript', txt: 'text/plain' }[name.split('.').at(-1)];
  await route.fulfill({ body: fs.readFileSync(path.join(PAGE, name)), contentType: `${type}; charset=utf-8` });
}

/** A ZMTP peer that completes the handshake, sends what it is given, and stays. */
export function peer(t, endpoint, ...frames) {
  const { hostname, port } = new URL(endpoint);
  const socket = net.connect(Number(port), hostname);
  after(t, () => socket.destroy());
  socket.on('error', () => {});
  const greeting = Buffer.alloc(64);
  greeting.set([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0]);
  greeting.write('NULL', 12);
  const ready = Buffer.from('\x05READY\x0bSocket-Type\0\0\0\x06DEALER', 'latin1');
  const frame = (body, index) => {
    const bytes = Buffer.from(body);
    return Buffer.concat([Buffer.from([index + 1 < frames.length ? 1 : 0, bytes.length]), bytes]);
  };
  socket.write(Buffer.concat([greeting, Buffer.from([4, ready.length]), ready, ...frames.map(frame)]));
  return socket;
}
