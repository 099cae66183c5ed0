// The last hour, as the server remembers it.

import { get } from './api.js';
import { h, Keyed, setAttribute, setText } from './dom.js';
import { clock, visible } from './format.js';
import { toService } from './links.js';

/** @typedef {import('./api.js').Row} Row */

/** Seconds that are kept. */
const KEPT = 60 * 60;

/** Samples that may be missing without a gap. */
const MISSING = 2;

/** Values by time, and events. */
export class History {
  /** @param {Record<string, string>} [of] parameters: of everything, without them */
  constructor(of = {}) {
    this.parameters = of;
    /** @type {number[]} */
    this.times = [];
    /** @type {Map<string, (number | null)[]>} */
    this.values = new Map();
    /** @type {Row[]} the latest last */
    this.events = [];
  }

  /** The time of the latest sample. */
  get now() {
    return this.times.at(-1) ?? 0;
  }

  /** Asks for what is new. */
  async refresh() {
    this.add(await get('history', { ...this.parameters, after: this.now || null }));
  }

  /** @param {Row} reply */
  add(reply) {
    const times = /** @type {number[]} */ (reply['times'] ?? []);
    const given = /** @type {Record<string, (number | null)[]>} */ (reply['values'] ?? {});
    const gap = (MISSING + 1) * Number(reply['interval_seconds']);
    times.forEach((time, index) => {
      const last = this.times.at(-1);
      if (last !== undefined && time <= last) return;
      if (last !== undefined && time - last > gap) this.#push(last + 1, () => null);
      this.#push(time, (name) => given[name]?.[index] ?? null, Object.keys(given));
    });
    const old = this.times.findIndex((time) => time >= this.now - KEPT);
    if (old > 0) {
      this.times.splice(0, old);
      for (const values of this.values.values()) values.splice(0, old);
    }
    const known = this.events.at(-1)?.['id'] ?? 0;
    const events = /** @type {Row[]} */ (reply['events'] ?? []);
    this.events = [...this.events, ...events.filter((event) => event['id'] > known)].filter((event) => event['time'] >= this.now - KEPT);
  }

  /**
   * @param {number} time
   * @param {(name: string) => number | null} value
   * @param {string[]} [names]
   */
  #push(time, value, names = []) {
    for (const name of names) {
      if (!this.values.has(name)) this.values.set(name, this.times.map(() => null));
    }
    this.times.push(time);
    for (const [name, values] of this.values) values.push(value(name));
  }

  /** @param {string} name */
  of(name) {
    return this.values.get(name) ?? this.times.map(() => null);
  }
}

/** How events look: never by colour alone. @type {Record<string, [string, string | null]>} */
const SIGNS = {
  started: ['●', 'good'], stopped: ['■', null], action: ['◆', null], gone: ['○', null], began: ['▲', 'warn'], ended: ['✓', 'good'],
};

/** Events that are listed. */
const SHOWN = 8;

/** What happened, the latest first. */
export class Lately {
  constructor() {
    const list = h('ol', { class: 'events', reversed: true });
    this.list = new Keyed(list, (/** @type {Row} */ event) => String(event['id']), make, () => {});
    this.empty = h('p', { class: 'note' }, 'Nothing happened in the last hour.');
    this.all = false;
    this.button = h('button', { type: 'button', onclick: () => this.#toggle() }, 'Show all');
    this.element = h('section', { class: 'card lately' }, h('h2', {}, 'Lately'), list, this.empty, h('p', { class: 'buttons' }, this.button));
    /** @type {History | null} */
    this.history = null;
  }

  #toggle() {
    this.all = !this.all;
    setText(this.button, this.all ? 'Show fewer' : 'Show all');
    if (this.history) this.set(this.history);
  }

  /** @param {History} history */
  set(history) {
    this.history = history;
    const events = history.events.toReversed();
    this.list.set(this.all ? events : events.slice(0, SHOWN));
    this.empty.hidden = events.length > 0;
    this.button.hidden = events.length <= SHOWN;
  }
}

/** @param {Row} event */
function make(event) {
  const [sign, level] = SIGNS[event['kind']] ?? ['·', null];
  const text = h('span', { class: 'wire' }, visible(event['text']));
  setAttribute(text, 'title', visible(event['text']));
  const link = event['service'] === null ? null : h('a', { href: toService(event), 'aria-label': `Show the service of: ${visible(event['text'])}` }, 'Show');
  return h('li', {}, h('time', {}, clock(new Date(event['time'] * 1000))), h('span', { class: 'sign', 'data-level': level, 'aria-hidden': 'true' }, sign),
    text, link);
}

/** How an event looks. @param {Row} event */
export const signOf = (event) => SIGNS[event['kind']]?.[0] ?? '·';
