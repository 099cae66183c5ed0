// Elements. Nothing here parses HTML: children are elements, or text that stays text.

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Makes an element. A member `on...` is a listener, `class` its classes, a boolean an attribute that is there or not.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else if (value === true) {
      element.setAttribute(name, '');
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  append(element, children);
  return element;
}

/**
 * @param {Element} parent
 * @param {Child[]} children
 */
export function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Replaces an element's text, if it is another.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Sets an attribute, or removes it.
 * @param {Element} element
 * @param {string} name
 * @param {string | null} value
 */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/**
 * The children of an element by key, made once and then only updated, so that they keep identity and focus.
 * @template T
 */
export class Keyed {
  /**
   * @param {Element} parent
   * @param {(item: T) => string} key
   * @param {(item: T) => HTMLElement} make
   * @param {(element: HTMLElement, item: T) => void} update
   */
  constructor(parent, key, make, update) {
    this.parent = parent;
    this.key = key;
    this.make = make;
    this.update = update;
    /** @type {Map<string, HTMLElement>} */
    this.children = new Map();
  }

  /** @param {readonly T[]} items */
  set(items) {
    const focused = document.activeElement;
    /** @type {Map<string, HTMLElement>} */
    const next = new Map();
    let place = this.parent.firstElementChild;
    for (const item of items) {
      const key = this.key(item);
      if (next.has(key)) continue;
      const child = this.children.get(key) ?? this.make(item);
      this.update(child, item);
      next.set(key, child);
      if (child === place) place = place.nextElementSibling;
      else this.parent.insertBefore(child, place);
    }
    for (const [key, child] of this.children) {
      if (!next.has(key)) child.remove();
    }
    this.children = next;
    // A child that was moved has lost it.
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.parent.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
  }
}

/**
 * Names with their values.
 * @returns {{ element: HTMLElement, set: (facts: readonly Fact[]) => void }}
 *
 * @typedef {object} Fact
 * @property {string} name
 * @property {string} value
 * @property {number | null} [share] of a limit, from 0 to 1
 * @property {string} [level]
 */
export function facts() {
  const element = h('dl', { class: 'facts' });
  /** @param {HTMLElement} row @param {Fact} fact */
  const update = (row, fact) => {
    const value = /** @type {HTMLElement} */ (row.lastElementChild);
    setText(/** @type {Element} */ (value.firstElementChild), fact.value);
    setAttribute(row, 'data-level', fact.level ?? null);
    const bar = value.querySelector('.bar');
    if (fact.share === undefined || fact.share === null) bar?.remove();
    else setBar(bar ?? value.appendChild(makeBar()), fact.share);
  };
  const make = (/** @type {Fact} */ fact) => h('div', {}, h('dt', {}, fact.name), h('dd', {}, h('span', { class: 'wire' })));
  const rows = new Keyed(element, (/** @type {Fact} */ fact) => fact.name, make, update);
  return { element, set: (/** @type {readonly Fact[]} */ all) => rows.set(all) };
}

/** A bar. Beside it stands the same as text. */
export function makeBar() {
  return h('span', { class: 'bar', 'aria-hidden': 'true' }, h('span', {}));
}

/**
 * @param {Element} bar
 * @param {number} share
 */
export function setBar(bar, share) {
  const inner = bar.firstElementChild;
  if (inner instanceof HTMLElement) inner.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
}
