// A view of one of the server's lists: a page of it at a time, searched and sorted at the server, with the details of one entry beside it.
// What is shown is in the address.

import { ApiError, get } from './api.js';
import { facts, h, Keyed, setAttribute, setText } from './dom.js';
import { count, label, member, named, visible } from './format.js';
import { Table } from './table.js';

/** @typedef {import('./api.js').Row} Row */

/**
 * @typedef {object} Action
 * @property {string} label
 * @property {boolean} [danger]
 * @property {() => Promise<string | null>} run says what was done
 */

/**
 * @typedef {object} List
 * @property {string} id in the address of the view
 * @property {string} title
 * @property {string} path below /api/v1
 * @property {string} member of the reply
 * @property {string} about
 * @property {string} empty
 * @property {readonly import('./table.js').Column[]} columns
 * @property {(row: Row) => string} key
 * @property {(row: Row) => string} name of an entry
 * @property {readonly string[]} [rates] members whose growth each second becomes `NAME_rate`
 * @property {Record<string, string>} [fixed] parameters of all its requests
 * @property {boolean} [isPart] of a page of one thing, which has an address and a heading of its own
 * @property {boolean} [publishes] only a server that publishes has it
 * @property {Record<string, (row: Row) => string>} [words] members that the details show in words
 * @property {(row: Row) => string | null} [page] the page of an entry
 * @property {boolean} [linked] an entry's name leads to its page, and there are no details
 * @property {string} [pageLabel]
 * @property {(row: Row) => Action[]} [actions]
 * @property {(row: Row) => Promise<Node>} [more] is shown below the details
 */

/** Entries of a page, and of one that is a part of another one. */
const LIMIT = 200;
const PART = 50;

/** Seconds between replies that rates are made of, at least. */
const LEAST = 1;

/** Milliseconds after the last key before a search. */
const PAUSE = 250;

/** @param {string} name of a sum */
const rateOf = (name) => `${name.replace(/_bytes$/, '')}_rate`;

/** Member of a row here that no row of the server has. */
const KEY = '#key';

/** @param {Row} row */
const keyOf = (row) => String(row[KEY]);

/**
 * Rows with their keys. Of several with the same one the last is the first: lists of what happened begin with the latest.
 * @param {readonly Row[]} rows
 * @param {(row: Row) => string} key
 * @returns {Row[]}
 */
function withKeys(rows, key) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return rows.toReversed().map((row) => {
    const own = key(row);
    const number = (seen.get(own) ?? 0) + 1;
    seen.set(own, number);
    return { ...row, [KEY]: number === 1 ? own : `${own} #${number}` };
  }).reverse();
}

export class ListView {
  /**
   * @param {List} list
   * @param {{ acted: (done: string | null) => void }} page
   */
  constructor(list, page) {
    this.list = list;
    this.page = page;
    this.id = list.id;
    this.title = list.title;
    /** @type {number[]} values of `after` of this page and those before it */
    this.pages = [0];
    /** @type {number | null} */
    this.next = null;
    /** @type {number | null} how many match, if that is known */
    this.found = null;
    this.search = '';
    /** The address when the server was last asked for another order or search. */
    this.asked = '';
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.typing = undefined;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {string | null} */
    this.open = null;
    /** @type {{ time: number, rows: Map<string, Row> }} */
    this.before = { time: 0, rows: new Map() };
    /** @type {Map<string, Row>} */
    this.rates = new Map();
    this.loaded = 0;

    this.table = new Table({ caption: list.title, columns: list.columns, key: keyOf, open: list.linked ? null : (key) => this.#toggle(key), sorted: () => this.#ask() });
    const soon = () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#ask(), PAUSE);
    };
    this.field = h('input', { type: 'search', id: `${list.id}-search`, placeholder: 'name, address, …', autocomplete: 'off', spellcheck: 'false', maxlength: 100, oninput: soon, onchange: () => this.#ask() });
    this.state = h('p', { class: 'state', 'aria-live': 'polite' });
    this.first = h('button', { type: 'button', onclick: () => this.#turn([0]) }, 'First page');
    this.more = h('button', { type: 'button', onclick: () => this.#turn([...this.pages, this.next ?? 0]) }, 'Next page');
    this.empty = h('p', { class: 'empty' }, list.empty);
    this.scroller = h('div', { class: 'scroller', tabindex: '0', role: 'region', 'aria-label': `${list.title}, table` }, this.table.element, this.empty);
    this.tools = h('div', { class: 'tools' },
      h('label', { for: this.field.id }, 'Search ', this.field), this.state, h('span', { class: 'pager' }, this.first, this.more));
    this.details = new Details(list, page, () => this.#toggle(null));
    this.element = h('div', { class: 'view' },
      list.isPart ? h('h2', {}, list.title) : h('h1', { tabindex: '-1' }, list.title),
      list.isPart ? null : h('p', { class: 'about' }, list.about),
      this.tools,
      h('div', { class: 'split' }, this.scroller, this.details.element));
    this.element.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.open !== null) this.#toggle(null);
    });
    this.#show();
  }

  /** The address of what is shown. */
  get address() {
    const parameters = new URLSearchParams();
    if (this.search) parameters.set('search', this.search);
    const order = this.table.order;
    if (order) parameters.set('sort', `${order.down ? '-' : ''}${order.column.id}`);
    if (this.open !== null) parameters.set('row', this.open);
    return `#${this.id}${parameters.size ? `?${parameters}` : ''}`;
  }

  /** @param {URLSearchParams} parameters of the view's address */
  enter(parameters) {
    const before = this.address;
    this.search = parameters.get('search') ?? '';
    this.field.value = this.search;
    this.table.setOrder(parameters.get('sort'));
    const open = parameters.get('row');
    if (open !== this.open) this.#close();
    this.open = open;
    this.table.select(open);
    this.asked = this.address;
    if (this.asked !== before) this.pages = [0];
    this.#show();
  }

  async refresh() {
    const asked = this.loaded += 1;
    const after = this.pages.at(-1) ?? 0;
    const reply = await get(this.list.path, { ...this.list.fixed, limit: this.list.isPart ? PART : LIMIT, after: after || null, search: this.search, sort: this.table.orderAtServer });
    // Another page was asked for meanwhile.
    if (asked !== this.loaded) return;
    const given = reply[this.list.member];
    this.rows = this.#withRates(Array.isArray(given) ? given : []);
    this.next = typeof reply['next'] === 'number' ? reply['next'] : null;
    this.found = typeof reply['found'] === 'number' ? reply['found'] : null;
    this.#show();
  }

  /** @param {Row[]} rows */
  #withRates(rows) {
    rows = withKeys(rows, this.list.key);
    const time = performance.now() / 1000;
    const { time: then, rows: earlier } = this.before;
    const names = this.list.rates ?? [];
    if (time - then >= LEAST) {
      this.before = { time, rows: new Map(rows.map((row) => [keyOf(row), row])) };
      const grown = (/** @type {Row} */ row) => {
        const old = earlier.get(keyOf(row));
        return names.map((name) => [rateOf(name), old && row[name] >= old[name] ? (row[name] - old[name]) / (time - then) : null]);
      };
      this.rates = new Map(rows.map((row) => [keyOf(row), Object.fromEntries(grown(row))]));
    }
    return rows.map((row) => ({ ...this.rates.get(keyOf(row)), ...row }));
  }

  #show() {
    const { rows } = this;
    this.table.set(rows);
    const isPart = this.next !== null || this.pages.length > 1;
    const of = this.found !== null && this.found > rows.length ? ` of ${count(this.found)}` : '';
    const page = isPart ? `, page ${this.pages.length}${this.next !== null ? '; there are more' : of ? '' : ', the last'}` : '';
    const among = isPart && this.table.order && !this.table.orderAtServer ? '; sorted among these' : '';
    setText(this.state, `${count(rows.length)}${of} shown${page}${among}`);
    this.tools.hidden = Boolean(this.list.isPart) && !isPart && !this.search;
    this.first.hidden = this.pages.length === 1;
    this.more.hidden = this.next === null;
    this.empty.hidden = rows.length > 0 || this.loaded === 0;
    setText(this.empty, this.search ? 'Nothing matches the search.' : this.list.empty);
    this.table.element.hidden = rows.length === 0;
    if (this.open === null) return;
    const row = rows.find((row) => keyOf(row) === this.open) ?? null;
    if (row && this.details.element.hidden) this.details.start(row, false);
    else this.details.set(row);
  }

  /** Asks for what the search and the order are now. */
  #ask() {
    clearTimeout(this.typing);
    const search = this.field.value.trim();
    const asked = this.asked;
    this.search = search;
    this.asked = this.address;
    if (asked === this.asked) return;
    this.pages = [0];
    this.#note();
    this.page.acted(null);
  }

  /** Writes what is shown into the address. */
  #note() {
    if (!this.list.isPart) history.replaceState(null, '', this.address);
  }

  /** @param {number[]} pages */
  #turn(pages) {
    this.pages = pages;
    this.#toggle(null);
    this.page.acted(null);
    this.scroller.scrollTop = 0;
    this.scroller.focus();
  }

  /** @param {string | null} key */
  #toggle(key) {
    const before = this.open;
    this.#close();
    this.open = key === before ? null : key;
    this.table.select(this.open);
    this.#note();
    const row = this.rows.find((row) => keyOf(row) === this.open);
    if (row) this.details.start(row, true);
    else if (before !== null) this.table.focus(before);
  }

  #close() {
    this.open = null;
    this.details.element.hidden = true;
  }
}

/** The details of one entry, and what can be done to it. */
class Details {
  /**
   * @param {List} list
   * @param {{ acted: (done: string | null) => void }} page
   * @param {() => void} close
   */
  constructor(list, page, close) {
    this.list = list;
    this.page = page;
    this.title = h('h2', { tabindex: '-1' });
    this.gone = h('p', { class: 'note' }, 'No longer in this list.');
    this.actions = h('p', { class: 'buttons' });
    this.link = h('a', {}, list.pageLabel ?? 'Everything about it');
    this.facts = facts();
    this.more = h('div', {});
    this.element = h('aside', { class: 'details', 'aria-label': list.isPart ? `${list.title}, details` : 'Details', hidden: true },
      h('div', { class: 'head' }, this.title, h('button', { type: 'button', class: 'close', onclick: close, 'aria-label': 'Close details' }, '×')),
      this.gone, h('p', {}, this.link), this.actions, this.facts.element, this.more);
    /** @type {Row | null} */
    this.row = null;
    this.buttons = new Keyed(this.actions, (/** @type {Action} */ action) => action.label, (action) => this.#button(action), () => {});
  }

  /**
   * @param {Row} row
   * @param {boolean} focuses
   */
  start(row, focuses) {
    this.element.hidden = false;
    this.more.replaceChildren();
    this.set(row);
    if (focuses) this.title.focus();
    if (this.list.more) this.#load(row);
  }

  /** @param {Row | null} row null if it is gone; then its last values stay */
  set(row) {
    this.gone.hidden = row !== null;
    this.buttons.set(row ? this.list.actions?.(row) ?? [] : []);
    if (!row) return;
    this.row = row;
    const page = this.list.page?.(row) ?? null;
    setAttribute(this.link, 'href', page);
    this.link.hidden = page === null;
    setText(this.title, this.list.name(row));
    const order = this.list.columns.map((column) => column.id);
    const place = (/** @type {string} */ name) => (order.includes(name) ? order.indexOf(name) : order.length);
    const shown = Object.keys(row).filter((name) => row[name] !== null && !name.endsWith('_b64') && name !== KEY);
    shown.sort((a, b) => place(a) - place(b));
    // As in the table, if it has them.
    const word = (/** @type {string} */ name) => this.list.columns.find((column) => column.id === name)?.label ?? label(name);
    const labels = shown.map((name) => (shown.some((other) => other !== name && word(other) === word(name)) ? label(`${name}.`) : word(name)));
    const value = (/** @type {string} */ name) => this.list.words?.[name]?.(row) ?? (`${name}_b64` in row ? named(row, name) : member(name, row[name]));
    this.facts.set(shown.map((name, index) => ({ name: labels[index]?.replace('.', '') ?? name, value: value(name) })));
  }

  /** @param {Action} action */
  #button(action) {
    const act = async () => {
      // As the entry is now.
      const now = this.row && this.list.actions?.(this.row).find((one) => one.label === action.label);
      if (now) this.page.acted(await now.run());
    };
    return h('button', { type: 'button', class: action.danger ? 'danger' : '', onclick: act }, action.label);
  }

  /** @param {Row} row */
  async #load(row) {
    let more;
    try {
      more = await this.list.more?.(row);
    } catch (error) {
      more = h('p', { class: 'note' }, visible(error instanceof ApiError ? error.message : error));
    }
    if (more && this.row && keyOf(this.row) === keyOf(row)) this.more.replaceChildren(more);
  }
}
