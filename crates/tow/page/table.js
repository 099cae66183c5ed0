// A table whose rows keep identity and focus while their values change.

import { h, Keyed, makeBar, setAttribute, setBar, setText } from './dom.js';
import { NONE } from './format.js';

/** @typedef {import('./api.js').Row} Row */

/** Characters that are never cut. Longer text is whole when the pointer is on it, and in the details. */
const SHORT = 12;

/**
 * @typedef {object} Column
 * @property {string} id
 * @property {string} label
 * @property {(row: Row) => string} text as shown; from the wire only through `visible`
 * @property {string} [by] the member by which the server sorts; rows are sorted here, among those that are shown, if there is none
 * @property {(row: Row) => string | number | null | undefined} [sort] by this; by the text if there is none
 * @property {boolean} [numeric] to the right, and sorted from the largest down at first
 * @property {(row: Row) => number | null} [share] a bar beside the text, from 0 to 1
 * @property {(row: Row) => string | null} [level] `good`, `warn` or `bad`: also said by the text
 * @property {(row: Row) => string | null} [link] the page of what it names
 * @property {1 | 2 | 3} [priority] 2 is hidden on narrow screens, 3 on middling ones too
 * @property {boolean} [wide] takes what is left
 * @property {boolean} [rare] hidden while no row has it
 */

export class Table {
  /**
   * @param {object} options
   * @param {string} options.caption
   * @param {readonly Column[]} options.columns the first names the row
   * @param {(row: Row) => string} options.key
   * @param {((key: string) => void) | null} options.open what a row's button does
   * @param {() => void} [options.sorted] the order is another one, and the server sorts; without it all rows are here
   */
  constructor({ caption, columns, key, open, sorted }) {
    this.columns = columns;
    this.key = key;
    this.open = open;
    this.sorted = sorted;
    /** @type {{ column: Column, down: boolean } | null} */
    this.order = null;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {string | null} */
    this.selected = null;
    /** @type {WeakMap<Element, string>} */
    this.keys = new WeakMap();
    this.body = h('tbody');
    this.heads = columns.map((column) => {
      const button = h('button', { type: 'button', onclick: () => this.sortBy(column) }, column.label);
      return h('th', { scope: 'col', class: classes(column) }, button);
    });
    this.element = h('table', {},
      h('caption', { class: 'hidden' }, caption), h('thead', {}, h('tr', {}, ...this.heads)), this.body);
    this.keyed = new Keyed(this.body, key, () => this.#make(), (element, row) => this.#update(element, row));
    this.body.addEventListener('keydown', (event) => this.#move(event));
    this.body.addEventListener('click', (event) => {
      const row = event.target instanceof Element && !event.target.closest('a[href]') ? event.target.closest('tr') : null;
      const key = row ? this.keys.get(row) : undefined;
      if (key !== undefined && !String(getSelection() ?? '')) this.open?.(key);
    });
  }

  /** @param {Row[]} rows */
  set(rows) {
    this.rows = rows;
    const order = this.order;
    if (order && !this.orderAtServer) {
      const by = order.column.sort ?? order.column.text;
      const direction = order.down ? -1 : 1;
      rows = rows.map((row) => /** @type {const} */ ([by(row), row])).sort(([a], [b]) => compare(a, b, direction))
        .map(([, row]) => row);
    }
    this.keyed.set(rows);
    this.columns.forEach((column, index) => {
      if (!column.rare) return;
      const isHidden = rows.every((row) => column.text(row) === NONE);
      for (const line of [this.heads[index]?.parentElement, ...this.body.children]) setAttribute(/** @type {HTMLElement} */ (line?.children[index]), 'hidden', isHidden ? '' : null);
    });
  }

  /** @param {string | null} key */
  select(key) {
    this.selected = key;
    for (const [of, element] of this.keyed.children) mark(element, of === key);
  }

  /** @param {string} key */
  focus(key) {
    focus(this.keyed.children.get(key));
  }

  /** The parameter `sort`, if the server sorts. */
  get orderAtServer() {
    const order = this.order;
    return this.sorted && order?.column.by ? `${order.down ? '-' : ''}${order.column.by}` : null;
  }

  /** @param {Column} column */
  sortBy(column) {
    const first = column.numeric ?? false;
    if (this.order?.column !== column) this.order = { column, down: first };
    else if (this.order.down === first) this.order = { column, down: !first };
    else this.order = null;
    this.#showOrder();
    this.sorted?.();
  }

  /** @param {string | null} order the id of a column, after `-` if the largest is the first */
  setOrder(order) {
    const column = this.columns.find(({ id }) => id === order?.replace(/^-/, ''));
    this.order = column ? { column, down: order?.startsWith('-') ?? false } : null;
    this.#showOrder();
  }

  #showOrder() {
    const order = this.order;
    this.columns.forEach((one, index) => {
      const head = /** @type {HTMLElement} */ (this.heads[index]);
      setAttribute(head, 'aria-sort', one !== order?.column ? null : order.down ? 'descending' : 'ascending');
    });
    this.set(this.rows);
  }

  #make() {
    const cells = this.columns.map((column, index) => {
      const text = h(column.link && (index > 0 || !this.open) ? 'a' : 'span', { class: 'wire' });
      if (index > 0) return h('td', { class: classes(column) }, text);
      const name = this.open ? h('button', { type: 'button', class: 'open' }, text) : text;
      return h('th', { scope: 'row', class: classes(column) }, name);
    });
    return h('tr', {}, ...cells);
  }

  /**
   * @param {HTMLElement} element
   * @param {Row} row
   */
  #update(element, row) {
    const key = this.key(row);
    this.keys.set(element, key);
    mark(element, key === this.selected);
    this.columns.forEach((column, index) => {
      const cell = /** @type {HTMLElement} */ (element.children[index]);
      const text = column.text(row);
      const place = /** @type {HTMLElement} */ (cell.querySelector('.wire'));
      setText(place, text);
      setAttribute(place, 'title', !column.numeric && text.length > SHORT ? text : null);
      if (place instanceof HTMLAnchorElement) setAttribute(place, 'href', text === NONE ? null : column.link?.(row) ?? null);
      setAttribute(cell, 'data-level', column.level?.(row) ?? null);
      if (!column.share) return;
      const share = column.share(row);
      const bar = cell.querySelector('.bar');
      if (share === null) bar?.remove();
      else setBar(bar ?? cell.insertBefore(makeBar(), place), share);
    });
  }

  /**
   * Arrows go from row to row.
   * @param {KeyboardEvent} event
   */
  #move(event) {
    const row = event.target instanceof Element ? event.target.closest('tr') : null;
    /** @type {Record<string, Element | null | undefined>} */
    const places = {
      ArrowDown: row?.nextElementSibling,
      ArrowUp: row?.previousElementSibling,
      Home: this.body.firstElementChild,
      End: this.body.lastElementChild,
    };
    if (!(event.key in places)) return;
    event.preventDefault();
    focus(places[event.key]);
  }
}

/** @param {Element | null | undefined} row */
function focus(row) {
  const name = row?.querySelector('button, a');
  if (name instanceof HTMLElement) name.focus();
}

/** @param {Column} column */
function classes({ numeric, priority, wide }) {
  return [numeric ? 'number' : '', `p${priority ?? 1}`, wide ? 'wide' : ''].filter(Boolean).join(' ');
}

/**
 * @param {HTMLElement} row
 * @param {boolean} isSelected
 */
function mark(row, isSelected) {
  row.classList.toggle('selected', isSelected);
  const button = row.querySelector('button.open');
  if (button) setAttribute(button, 'aria-expanded', String(isSelected));
}

/**
 * Values that aren't there are the last in either direction.
 * @param {string | number | null | undefined} a
 * @param {string | number | null | undefined} b
 * @param {number} direction
 */
function compare(a, b, direction) {
  const missing = Number(a === null || a === undefined || a === NONE) - Number(b === null || b === undefined || b === NONE);
  if (missing) return missing;
  if (typeof a === 'number' && typeof b === 'number') return direction * (a - b);
  return direction * String(a ?? '').localeCompare(String(b ?? ''), 'en', { numeric: true });
}
