// The site of the documentation, in the folder SITE: its search finds a word, and leads to the page that has it.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { browser, close } from './support.mjs';

const SITE = process.env.SITE;
const TYPES = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml', '.png': 'image/png', '.woff2': 'font/woff2' };

/** A server of files, as any web server is. */
const server = http.createServer((request, reply) => {
  const name = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
  const file = path.join(SITE, name.endsWith('/') ? `${name}index.html` : name);
  fs.readFile(file, (error, body) => {
    reply.writeHead(error ? 404 : 200, { 'content-type': TYPES[path.extname(file)] ?? 'image/x-icon' });
    reply.end(body);
  });
});

before(() => new Promise((resolve) => server.listen(0, '127.0.0.1', resolve)));
after(async () => {
  await close();
  server.closeAllConnections();
  server.close();
});

// The first page, and one in a folder: hits are relative to where the reader is.
for (const from of ['', 'docs/guide/cell.html']) {
  test(`search from /${from} finds a word, and a hit opens its page`, async () => {
    const page = await (await browser()).newPage();
    page.setDefaultTimeout(20_000);
    const errors = [];
    page.on('pageerror', (error) => errors.push(String(error)));
    page.on('response', (response) => { if (response.status() >= 400 && !response.url().endsWith('favicon.ico')) errors.push(`${response.status()} ${response.url()}`); });
    await page.goto(`http://127.0.0.1:${server.address().port}/${from}`);
    await page.locator('#mdbook-search-toggle').click();
    await page.locator('#mdbook-searchbar').pressSequentially('inotify');
    const hit = page.locator('#mdbook-searchresults a').first();
    await hit.waitFor();
    await Promise.all([page.waitForURL(/highlight=inotify/), hit.click()]);
    const mark = page.locator('main mark').filter({ hasText: /inotify/i }).first();
    await mark.waitFor();
    assert.ok(await page.locator('main h1').first().textContent(), 'the page has a title');
    assert.deepEqual(errors, []);
    await page.close();
  });
}
