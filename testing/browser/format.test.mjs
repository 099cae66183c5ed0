// Numbers and text as people read them: a module that needs no browser.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';

const source = fs.readFileSync(path.join(import.meta.dirname, '../../crates/tow/page/format.js'), 'utf8');
const format = await import(`data:text/javascript,${encodeURIComponent(source)}`);

test('what is invisible, or moves other text, is escaped', () => {
  const escaped = [0, 7, 0x1b, 0x7f, 0x85, 0xa0, 0xad, 0x34f, 0x61c, 0x115f, 0x180e, 0x2003, 0x200b, 0x200d, 0x200e, 0x2028, 0x202e, 0x2066, 0x2069, 0x3164, 0xfeff, 0xe0041, 0xe000, 0xd800];
  for (const code of escaped) {
    assert.equal(format.visible(`a${String.fromCodePoint(code)}b`), `a\\u{${code.toString(16)}}b`);
  }
  assert.equal(format.visible('\n\t'), '\\n\\t');
  for (const plain of ['resize image', 'größe', '画像', '🚀', 'שלום', '<b>"\'\\&']) assert.equal(format.visible(plain), plain);
});

test('names that differ look different, also if they are not UTF-8', () => {
  const shown = (text, bytes) => format.named({ service: text, ...(bytes && { service_b64: Buffer.from(bytes, 'latin1').toString('base64') }) }, 'service');
  assert.equal(shown('größe\u202e'), 'größe\\u{202e}');
  assert.equal(shown('\ufffd\ufffd', '\xff\xfe'), '\\xff\\xfe');
  assert.equal(shown('\ufffd\ufffd', '\xfe\xff'), '\\xfe\\xff');
  assert.equal(shown('a\ufffd\n', 'a\\\x80\n'), 'a\\\\\\x80\\n');
  assert.equal(shown('\\xff\\xfe'), '\\\\xff\\\\xfe');
});

test('numbers have units and few digits', () => {
  const cases = [
    ['bytes', [[0, '0 B'], [999, '999 B'], [1000, '0.98 KiB'], [8 << 20, '8.00 MiB'], [123 << 20, '123 MiB'], [null, '–'], [2 ** 60, '1,024 PiB'.replace(',', '')]]],
    ['seconds', [[0, '0 s'], [0.0123, '12 ms'], [0.004, '4.0 ms'], [0.1, '0.1 s'], [9.96, '10 s'], [59.6, '1 min'], [61, '1 min 1 s'], [3600, '1 h'], [7260, '2 h 1 min'], [90000, '1 d 1 h'], [null, '–']]],
    ['ago', [[0.2, '< 1 s'], [2, '2 s']]],
    ['short', [[0, '0'], [0.25, '0.3'], [12, '12'], [1200, '1.2k'], [1e6, '1M'], [250000, '250k']]],
    ['count', [[1234567, '1,234,567'], [undefined, '–']]],
  ];
  for (const [name, given] of cases) {
    for (const [value, wanted] of given) assert.equal(format[name](value), wanted, `${name}(${value})`);
  }
});

test('moments have their zone', () => {
  for (const [zone, wanted] of [['UTC', '2026-01-02 03:04:05 +00:00'], ['Asia/Kolkata', '2026-01-02 08:34:05 +05:30'], ['America/St_Johns', '2026-01-01 23:34:05 -03:30']]) {
    process.env['TZ'] = zone;
    assert.equal(format.moment(Date.UTC(2026, 0, 2, 3, 4, 5) / 1000), wanted, zone);
  }
});
