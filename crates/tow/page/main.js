// Asks the server every two seconds while the page is visible, and shows what it says.

import { ofServer, setReadOnly } from './actions.js';
import { ApiError, askOtherTabs, get, hasToken, onToken, setRefused, setToken, takeToken, tokenIn } from './api.js';
import { h, Keyed, setAttribute, setText } from './dom.js';
import { clock, count, seconds, visible } from './format.js';
import { History } from './history.js';
import { JournalView } from './journal.js';
import { ListView } from './list.js';
import { Overview } from './overview.js';
import { countOf, NONE_KNOWN, viewOf } from './problems.js';
import { ServiceView, VersionView, WhoView } from './thing.js';
import { LISTS } from './views.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {Overview | ListView | JournalView | ServiceView | WhoView | VersionView} View */

const INTERVAL = 2000;

/** Pause as a multiple of what the server's answers took: a page takes a small part of its time. */
const RESTS = 5;

/** How states look: never by colour alone. @type {Record<string, [string, string]>} */
const STATES = {
  ready: ['●', 'good'], starting: ['◐', 'warn'], stopping: ['■', 'bad'], draining: ['▼', 'bad'], silent: ['✕', 'bad'],
};

/**
 * The name of the server's machine, which a tunnel's address hides.
 * @param {Row | null} status
 */
const onHost = (status) => (status?.['host'] ? ` on ${visible(status['host'])}` : '');

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

class Page {
  constructor() {
    /** @type {Row | null} */
    this.status = null;
    this.history = new History();
    this.problems = NONE_KNOWN;
    /** @type {View[]} with a tab */
    this.views = [];
    /** @type {View[]} of one thing */
    this.things = [];
    /** @type {View | null} */
    this.view = null;
    /** @type {Set<string>} views that this server doesn't have */
    this.missing = new Set();
    this.paused = false;
    this.asking = false;
    this.again = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {Date | null} */
    this.updated = null;
    this.title = '';
    /** @type {string | null} why there is no answer */
    this.trouble = null;
    this.tabs = new Keyed(element('tabs'), (/** @type {View} */ view) => view.id, makeTab, (tab, view) => this.#updateTab(tab, view));
    this.pause = element('pause');
    this.pause.addEventListener('click', () => this.#setPaused(!this.paused));
    element('login').addEventListener('submit', (event) => this.#login(event));
    addEventListener('hashchange', () => this.#route());
    document.addEventListener('visibilitychange', () => this.#tick());
  }

  async start() {
    onToken(() => this.#tick());
    if (!takeToken() && !hasToken()) await askOtherTabs();
    this.#tick();
  }

  /** @param {boolean} paused */
  #setPaused(paused) {
    this.paused = paused;
    setText(/** @type {Element} */ (this.pause.firstElementChild), paused ? '▶ Resume' : '‖ Pause');
    setAttribute(this.pause, 'aria-label', paused ? 'Resume updates' : 'Pause updates');
    this.#showState();
    if (!paused) this.#tick();
  }

  /** @param {Event} event */
  #login(event) {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (element('token'));
    // The whole address may have been pasted.
    setToken(tokenIn(field.value) ?? field.value);
    field.value = '';
    this.#tick();
  }

  /** Asks now, and again later. */
  async #tick() {
    clearTimeout(this.timer);
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    this.again = false;
    const begin = performance.now();
    try {
      await this.#ask();
      this.updated = new Date();
      this.#say(null);
    } catch (error) {
      this.#failed(error);
    }
    this.asking = false;
    if (this.again) this.#tick();
    else if (!this.paused && !document.hidden && element('login').hidden) this.timer = setTimeout(() => this.#tick(), Math.max(INTERVAL, RESTS * (performance.now() - begin)));
    this.#showState();
  }

  async #ask() {
    const status = await get('status');
    setReadOnly(status['operator']?.['read_only'] === true);
    const known = this.status;
    if (known && (known['pid'] !== status['pid'] || known['started'] !== status['started'])) this.#forget();
    if (!this.status) this.#begin(status);
    this.status = status;
    this.login(false);
    if (status['peers'] === undefined) return;
    this.problems = /** @type {import('./problems.js').Problems} */ (/** @type {unknown} */ (await get('problems')));
    this.#showTitle();
    const view = this.view;
    if (view instanceof Overview) {
      await this.history.refresh();
      view.set(status, this.problems, this.history);
    }
    this.tabs.set(this.views);
    try {
      await view?.refresh();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404 || !view) throw error;
      this.#drop(view);
    }
    this.#showTitle();
  }

  /** Another process answers: nothing that is known is true of it. */
  #forget() {
    this.status = null;
    this.history = new History();
    this.problems = NONE_KNOWN;
    this.missing.clear();
  }

  /**
   * Makes the views of this kind of server.
   * @param {Row} status
   */
  #begin(status) {
    const program = status['program'] === 'broker' ? 'broker' : 'serve';
    const acted = (/** @type {string | null} */ done) => this.acted(done);
    const overview = new Overview(program, () => this.status && ofServer(this.status), acted);
    /** @type {View[]} */
    const lists = LISTS[program].filter((list) => !list.publishes || status['catalogue']).map((list) => new ListView(list, { acted }));
    if (program === 'broker') lists.splice(4, 0, new JournalView());
    this.views = [overview, ...lists];
    this.things = program === 'broker' ? [new ServiceView(acted), new WhoView(program, acted)] : [new WhoView(program, acted), new VersionView(acted)];
    this.status = status;
    this.#route();
  }

  /** Shows the view that the address names. */
  #route() {
    if (takeToken()) {
      this.#tick();
      return;
    }
    if (!this.views.length) return;
    const [name = '', query = ''] = location.hash.slice(1).split('?');
    const view = [...this.views, ...this.things].find((one) => one.id === name) ?? this.views[0];
    if (!view) return;
    const hadOne = this.view !== null;
    const before = this.title;
    const isOther = this.view !== view || this.things.includes(view);
    this.view = view;
    view.enter(new URLSearchParams(query));
    this.title = view.title;
    this.tabs.set(this.views);
    if (isOther) {
      element('view').replaceChildren(view.element);
      setText(element('done'), '');
      // What was clicked is gone with the view before.
      if (hadOne && before !== view.title && (document.activeElement === document.body || this.things.includes(view))) view.element.querySelector('h1')?.focus();
      if (view instanceof Overview && this.status) view.set(this.status, this.problems, this.history);
    }
    this.#showTitle();
    this.#tick();
  }

  /** The number of problems comes first: a tab shows only the beginning. */
  #showTitle() {
    const number = countOf(this.problems);
    setIcon(this.problems);
    document.title = `${number > 0 ? `(${count(number)}) ` : ''}${this.view?.title ?? ''} · tow ${this.status?.['program'] ?? ''}${onHost(this.status)}`;
  }

  /** @param {View} view that this server doesn't have */
  #drop(view) {
    this.views = this.views.filter((one) => one !== view);
    setText(element('done'), `This server has no ${view.title.toLowerCase()}.`);
    location.hash = '#overview';
  }

  /** @param {string | null} done */
  acted(done) {
    if (done !== null) setText(element('done'), `✓ ${done}`);
    this.#tick();
  }

  /** @param {unknown} error */
  #failed(error) {
    if (!(error instanceof ApiError)) {
      console.error(error);
      this.#say(`This page has a fault: ${visible(error)}`);
      return;
    }
    if (error.status === 401) {
      setRefused();
      this.login(true);
      setText(element('wrong'), hasToken() ? `Refused: ${visible(error.message)}.` : '');
      this.#say(null);
    } else if (error.status === 0) {
      this.#say(`The server can’t be reached (${error.message}).`);
    } else {
      this.#say(`The server says: ${visible(error.message)}.`);
    }
  }

  /** @param {string | null} trouble */
  #say(trouble) {
    const of = this.updated && trouble ? ` What you see is of ${clock(this.updated)}.` : '';
    this.trouble = trouble;
    const place = element('trouble');
    setText(place, trouble ? `✕ ${trouble}${of}` : '');
    place.hidden = trouble === null;
  }

  /** @param {boolean} wanted */
  login(wanted) {
    const form = element('login');
    if (form.hidden !== wanted) return;
    form.hidden = !wanted;
    element('view').hidden = wanted;
    element('nav').hidden = wanted;
    this.pause.hidden = wanted;
    if (wanted) element('token').focus();
  }

  #showState() {
    const status = this.status;
    const state = this.trouble ? 'silent' : status?.['draining'] ? 'draining' : String(status?.['state'] ?? 'silent');
    const [sign, level] = STATES[state] ?? ['?', 'warn'];
    const place = element('state');
    place.hidden = !status || !element('login').hidden;
    setText(place, `${sign} ${state === 'silent' ? 'no answer' : visible(state)}${state === 'draining' ? `, ${count(status?.['left'])} left` : ''}`);
    setAttribute(place, 'data-level', level);
    if (status) {
      setText(element('program'), `tow ${visible(status['program'])}`);
      setText(element('uptime'), `up ${seconds(status['uptime_seconds'])}`);
      const endpoints = /** @type {unknown[]} */ (status['endpoints'] ?? []).map(visible);
      setText(element('where'), `${onHost(status).trimStart()} ${endpoints.join(', ')}`.trim());
    }
    setText(element('updated'), this.paused ? 'paused' : this.updated ? clock(this.updated) : '');
  }

  /**
   * @param {HTMLElement} tab
   * @param {View} view
   */
  #updateTab(tab, view) {
    const link = /** @type {HTMLElement} */ (tab.firstElementChild);
    const number = /** @type {HTMLElement} */ (link.lastElementChild);
    setAttribute(link, 'aria-current', view === this.view ? 'page' : null);
    setAttribute(link, 'href', `./${view.address}`);
    const status = this.status ?? {};
    /** @type {Record<string, number | undefined>} */
    const numbers = { peers: status['peers'], services: status['services'], workers: status['workers'] };
    const loud = this.problems.problems.find((problem) => viewOf(problem) === view.id);
    setText(number, numbers[view.id] === undefined ? (loud ? '▲' : '') : `${loud ? '▲ ' : ''}${count(numbers[view.id])}`);
    setAttribute(number, 'data-level', loud ? (loud['severity'] === 'critical' ? 'bad' : 'warn') : null);
    number.hidden = number.textContent === '';
  }
}

/**
 * The icon shows problems, too, by its form and colour.
 * @param {import('./problems.js').Problems} problems
 */
function setIcon({ critical, warning }) {
  const mark = critical ? '<circle cx="18" cy="18" r="13" fill="#c62f23"/><path d="M12 12l12 12M24 12L12 24" stroke="#fff" stroke-width="4"/>'
    : warning ? '<path d="M18 4l15 27H3z" fill="#d98a00"/><path d="M18 13v9M18 25v3" stroke="#fff" stroke-width="4"/>'
      : '<path d="M2 8h32" stroke="#b4541f" stroke-width="5"/><path d="M2 19c4-4 7-4 11 0s7 4 11 0 6-4 10 0M2 29c4-4 7-4 11 0s7 4 11 0 6-4 10 0" stroke="#0a7a8a" stroke-width="5" fill="none"/>';
  const address = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 36 36">${mark}</svg>`)}`;
  setAttribute(element('icon'), 'href', address);
}

/**
 * `./` shows tools for accessibility that this is no link past the tabs.
 * @param {View} view
 */
function makeTab(view) {
  return h('li', {}, h('a', { href: `./#${view.id}` }, view.title, h('span', { class: 'number' })));
}

new Page().start();
