// What the page has of others is what they published.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { test } from 'node:test';

const PAGE = '../../crates/tow/page';

test('uPlot is that of the package, with its licence', () => {
  const package_ = path.dirname(path.dirname(createRequire(import.meta.url).resolve('uplot')));
  for (const [own, theirs] of [['uplot.js', 'dist/uPlot.iife.min.js'], ['uplot.css', 'dist/uPlot.min.css'], ['uplot-license.txt', 'LICENSE']]) {
    assert.deepEqual(fs.readFileSync(path.join(import.meta.dirname, PAGE, own)), fs.readFileSync(path.join(package_, theirs)), own);
  }
});
