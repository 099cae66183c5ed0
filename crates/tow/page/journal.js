// A broker's journal and spool.

import { get } from './api.js';
import { facts, h, setAttribute, setText } from './dom.js';
import { byteRate, bytes, count, perSecond, seconds, visible } from './format.js';
import { limit } from './overview.js';

/** @typedef {import('./api.js').Row} Row */

export class JournalView {
  constructor() {
    this.id = 'journal';
    this.title = 'Journal';
    this.state = h('p', { class: 'verdict' });
    this.journal = facts();
    this.disk = facts();
    this.spool = facts();
    /** @type {{ time: number, journal: Row } | null} */
    this.before = null;
    this.cards = h('div', { class: 'columns' },
      h('section', { class: 'card' }, h('h2', {}, 'Contents'), this.journal.element),
      h('section', { class: 'card' }, h('h2', {}, 'Writing'), this.disk.element),
      h('section', { class: 'card' }, h('h2', {}, 'Spool'), this.spool.element));
    this.element = h('div', { class: 'view' }, h('h1', { tabindex: '-1' }, 'Journal'),
      h('p', { class: 'about' }, 'Requests and outcomes on disk, and large bodies in files.'), this.state, this.cards);
  }

  get address() {
    return '#journal';
  }

  enter() {}

  async refresh() {
    const { journal, spool } = await get('journal');
    this.spool.set(spool ? [
      limit('Bytes', spool['bytes'], spool['most'], bytes),
      limit('Files', spool['files'], spool['most_files'], count),
      { name: 'Of it for requests', value: `${bytes(spool['most_for_requests'])} in ${count(spool['most_files_for_requests'])} files at most` },
    ] : []);
    if (!journal) {
      setText(this.state, '○ There is no journal: a restart forgets all requests.');
      setAttribute(this.state, 'data-level', null);
      this.journal.set([]);
      this.disk.set([]);
      return;
    }
    const failed = journal['state'] !== 'ok';
    setText(this.state, failed ? `▲ It can’t be written: ${visible(journal['error'] ?? journal['state'])}` : '✓ It is written.');
    setAttribute(this.state, 'data-level', failed ? 'bad' : 'good');
    this.journal.set([
      { name: 'Requests', value: count(journal['requests']) },
      { name: 'Needed', value: bytes(journal['needed_bytes']) },
      { name: 'On disk', value: `${bytes(journal['bytes'])} in ${count(journal['segments'])} segment${journal['segments'] === 1 ? '' : 's'}` },
    ]);
    const time = performance.now() / 1000;
    const before = this.before;
    this.before = { time, journal };
    const grown = (/** @type {string} */ name) => (before ? Math.max(0, journal[name] - before.journal[name]) : null);
    const elapsed = before ? time - before.time : 0;
    const rate = (/** @type {string} */ name) => (before && elapsed > 0 ? (grown(name) ?? 0) / elapsed : null);
    const [syncs, took] = [grown('syncs'), grown('sync_seconds')];
    this.disk.set([
      { name: 'Waiting to be written', value: bytes(journal['pending_bytes']) },
      { name: 'Current write', value: journal['writing_seconds'] > 0 ? `takes ${seconds(journal['writing_seconds'])} so far` : 'none', level: journal['writing_seconds'] > 1 ? 'warn' : undefined },
      { name: 'Written', value: byteRate(rate('written_bytes')) },
      { name: 'Syncs', value: `${perSecond(rate('syncs'))}, ${count(journal['syncs'])} in all` },
      { name: 'A sync takes', value: syncs ? `${seconds((took ?? 0) / syncs)} now; the longest ${seconds(journal['sync_seconds_max'])}` : `${seconds(journal['sync_seconds_last'])} the last time; the longest ${seconds(journal['sync_seconds_max'])}` },
      { name: 'Failed writes', value: count(journal['errors']), level: journal['errors'] > 0 ? 'warn' : undefined },
    ]);
  }
}
