// Pages of one thing: a service, a person or peer, a version.

import { ofPeer, ofService, toBlock } from './actions.js';
import { ApiError, encoded, get } from './api.js';
import { Chart } from './charts.js';
import { facts, h, Keyed, setAttribute, setText } from './dom.js';
import { bytes, count, moment, named, NONE, perSecond, seconds, short, visible } from './format.js';
import { History, Lately } from './history.js';
import { toWho } from './links.js';
import { ProblemList } from './problems.js';
import { Table } from './table.js';
import { ListView } from './list.js';
import { holdersOf, LISTS, requestsOf, shortDigest, workersOf } from './views.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {import('./dom.js').Fact} Fact */
/** @typedef {import('./list.js').Action} Action */
/** @typedef {import('./list.js').List} List */
/** @typedef {(done: string | null) => void} Acted */

/** The problems of one thing. @param {readonly Row[]} problems */
function counted(problems) {
  const critical = problems.filter((problem) => problem['severity'] === 'critical').length;
  return { problems, critical, warning: problems.length - critical };
}

/** A list, or a part of it, with links to its entries' own pages. */
class Part {
  /** @param {List} list */
  constructor(list) {
    this.list = list;
    // Rates need two replies.
    const columns = list.columns.filter(({ id }) => !/_rate$/.test(id));
    this.table = new Table({ caption: list.title, columns, key: list.key, open: null });
    this.heading = h('h2', {}, list.title);
    this.scroller = h('div', { class: 'scroller', tabindex: '0', role: 'region', 'aria-label': `${list.title}, table` }, this.table.element);
    this.element = h('section', { class: 'part', hidden: true }, this.heading, this.scroller);
  }

  /**
   * @param {Row[] | undefined} rows
   * @param {number} [found] how many there are
   */
  set(rows, found = rows?.length ?? 0) {
    this.element.hidden = !rows?.length;
    setText(this.heading, `${this.list.title}, ${found > (rows?.length ?? 0) ? `${count(rows?.length)} of ` : ''}${count(found)}`);
    this.table.set(rows ?? []);
  }
}

/** Buttons of actions, as the thing is now. */
class Buttons {
  /** @param {Acted} acted */
  constructor(acted) {
    this.element = h('p', { class: 'buttons' });
    /** @type {Action[]} */
    this.actions = [];
    const run = async (/** @type {string} */ label) => {
      const now = this.actions.find((one) => one.label === label);
      if (now) acted(await now.run());
    };
    const make = (/** @type {Action} */ { label, danger }) => h('button', { type: 'button', class: danger ? 'danger' : '', onclick: () => run(label) }, label);
    this.keyed = new Keyed(this.element, (/** @type {Action} */ action) => action.label, make, () => {});
  }

  /** @param {Action[]} actions */
  set(actions) {
    this.actions = actions;
    this.keyed.set(actions);
  }
}

/** What such pages have in common: they are made anew for each thing. */
class Thing {
  /**
   * @param {string} id
   * @param {Acted} acted
   */
  constructor(id, acted) {
    this.id = id;
    this.acted = acted;
    this.title = '';
    this.parameters = new URLSearchParams();
    this.element = h('div', { class: 'view' });
  }

  get address() {
    return `#${this.id}?${this.parameters}`;
  }

  /** @param {URLSearchParams} parameters */
  enter(parameters) {
    if (this.element.hasChildNodes() && `${parameters}` === `${this.parameters}`) return;
    this.parameters = parameters;
    this.begin();
  }

  /** Makes the page of what the parameters name. */
  begin() {}

  /**
   * @param {string} kind
   * @param {string} name
   * @param {...Node} parts
   */
  show(kind, name, ...parts) {
    this.gone = h('p', { class: 'empty', hidden: true });
    this.body = h('div', { class: 'view' }, ...parts);
    this.name = h('span');
    this.heading = h('h1', { tabindex: '-1', class: 'wire' }, h('span', { class: 'kind' }, `${kind} `), this.name);
    this.element.replaceChildren(this.heading, this.gone, this.body);
    this.setName(kind, name);
  }

  /**
   * @param {string} kind
   * @param {string} name
   */
  setName(kind, name) {
    this.title = `${kind} ${name}`;
    if (!this.heading || !this.name) return;
    setText(this.name, name);
    setAttribute(this.heading, 'title', name);
  }

  /** Says that it isn't there, or not any more. @param {string | null} why */
  setGone(why) {
    if (!this.gone || !this.body) return;
    this.gone.hidden = why === null;
    setText(this.gone, why ?? '');
    this.body.hidden = why !== null;
  }
}

/** A service of a broker. */
export class ServiceView extends Thing {
  /** @param {Acted} acted */
  constructor(acted) {
    super('service', acted);
  }

  begin() {
    const [name, b64] = [this.parameters.get('name'), this.parameters.get('b64')];
    /** @type {Row} */
    this.row = b64 === null ? { service: name ?? '' } : { service: name ?? '', service_b64: b64 };
    const shown = named(this.row, 'service');
    this.history = new History(b64 === null ? { service: name ?? '' } : { service_b64: b64 });
    this.problems = new ProblemList(this.acted);
    this.buttons = new Buttons(this.acted);
    this.facts = facts();
    this.state = h('p', { class: 'verdict' });
    this.charts = [
      new Chart({ title: 'Requests', format: perSecond, axis: short, lines: [{ name: 'in', label: 'in' }, { name: 'out', label: 'out' }, { name: 'failed', label: 'failed' }] }),
      new Chart({ title: 'Queue', format: count, axis: short, lines: [{ name: 'waiting', label: 'waiting for a worker' }] }),
    ];
    this.lately = new Lately();
    this.lists = [workersOf(this.row), requestsOf(this.row)].map((list) => new ListView(list, { acted: this.acted }));
    this.letters = h('p', {}, h('a', { href: './#dead-letters' }, 'Dead letters'));
    this.show('Service', shown, this.state, this.buttons.element, this.problems.element,
      h('div', { class: 'charts' }, h('section', { class: 'card' }, h('h2', {}, 'Now'), this.facts.element, this.letters), ...this.charts.map((chart) => chart.element)),
      ...this.lists.map((list) => list.element), this.lately.element);
  }

  async refresh() {
    const { row, history } = this;
    if (!row || !history) return;
    let service;
    try {
      service = await get(`services/${encoded(row)}`);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.setGone(`There is no service ${named(row, 'service')} now: it has neither workers nor requests.`);
      return;
    }
    await Promise.all([history.refresh(), ...(this.lists ?? []).map((list) => list.refresh())]);
    if (row !== this.row) return;
    this.setGone(null);
    this.buttons?.set(ofService(service));
    this.problems?.set(counted(service['problems']));
    this.facts?.set(serviceFacts(service));
    for (const chart of this.charts ?? []) chart.set(history, history.now);
    this.lately?.set(history);
    if (this.state) setText(this.state, service['paused'] ? '‖ paused' : '');
    if (this.letters) this.letters.hidden = !service['dead_letters'];
  }
}

/**
 * @param {Row} service
 * @returns {Fact[]}
 */
function serviceFacts(service) {
  const waits = service['oldest_seconds'] === null ? '' : `, the first for ${seconds(service['oldest_seconds'])}`;
  const rate = (/** @type {string} */ name) => (service[name] === null ? 'not known yet' : perSecond(service[name]));
  const within = (/** @type {unknown} */ time) => (time === null ? 'nothing was answered yet' : `within ${seconds(time)}`);
  const empty = service['waiting'] === 0 ? 'it is' : service['in_per_second'] === null ? 'not known yet'
    : service['empty_in_seconds'] === null ? 'never, at these rates' : `in ${seconds(service['empty_in_seconds'])}, at these rates`;
  return [
    { name: 'Waiting', value: `${count(service['waiting'])}${waits}` },
    { name: 'In', value: rate('in_per_second') },
    { name: 'Out', value: rate('out_per_second') },
    { name: 'Failed', value: `${rate('failed_per_second')}, ${count(service['failed'])} in all`, level: service['failed_per_second'] > 0 ? 'warn' : undefined },
    { name: 'Answers, half', value: within(service['median_seconds']) },
    { name: 'Answers, 19 of 20', value: within(service['usual_seconds']) },
    { name: 'Queue is empty', value: empty },
    { name: 'Workers', value: count(service['workers']), level: service['workers'] === 0 && service['waiting'] > 0 ? 'bad' : undefined },
    { name: 'In progress', value: `${count(service['in_flight'])} with workers` },
    { name: 'Clients that wait', value: service['clients'] === null ? 'over 1,000' : count(service['clients']) },
    { name: 'Unconfirmed', value: count(service['unconfirmed']) },
    { name: 'Dead letters', value: count(service['dead_letters']), level: service['dead_letters'] > 0 ? 'bad' : undefined },
  ];
}

/** Names of the parameters of a person or peer. */
const WHO = /** @type {const} */ ({ user: 'User', key: 'Key', address: 'Address', peer: 'Peer' });

/** A person or peer. */
export class WhoView extends Thing {
  /**
   * @param {'serve' | 'broker'} program
   * @param {Acted} acted
   */
  constructor(program, acted) {
    super('who', acted);
    this.program = program;
  }

  begin() {
    const kind = /** @type {keyof typeof WHO} */ (Object.keys(WHO).find((name) => this.parameters.has(name)) ?? 'user');
    this.who = { [kind]: this.parameters.get(kind) ?? '' };
    this.problems = new ProblemList(this.acted);
    this.buttons = new Buttons(this.acted);
    this.facts = facts();
    this.links = h('p', { class: 'buttons' });
    /** @type {[string, Part][]} */
    this.parts = LISTS[this.program].filter((list) => list.id !== 'audit' && list.id !== 'services' && list.id !== 'dead-letters' && list.id !== 'versions')
      .map((list) => [list.member, new Part(list)]);
    this.chart = new Chart({ title: 'Changes behind', format: count, axis: short, lines: [{ name: 'behind', label: 'lacks' }] });
    this.chart.element.hidden = true;
    /** @type {History | null} of a follower */
    this.history = null;
    this.show(WHO[kind], visible(this.parameters.get(kind) ?? ''), this.buttons.element, this.links, this.problems.element,
      h('div', { class: 'charts' }, h('section', { class: 'card' }, h('h2', {}, 'Now'), this.facts.element), this.chart.element), ...this.parts.map(([, part]) => part.element));
  }

  async refresh() {
    const { who, parts } = this;
    if (!who || !parts) return;
    const reply = await get('who', who);
    if (who !== this.who) return;
    await this.#showLag(reply['followers']?.[0]);
    const found = reply['found'];
    for (const [member, part] of parts) part.set(reply[member], found[member]);
    const peers = /** @type {Row[]} */ (reply['peers'] ?? []);
    this.problems?.set(counted(reply['problems']));
    const [one, ...others] = peers;
    this.buttons?.set(!one ? [] : others.length ? toBlock(one) : ofPeer(one));
    const sum = (/** @type {string} */ name) => peers.reduce((total, peer) => total + Number(peer[name] ?? 0), 0);
    const [first] = [...peers, ...(reply['gone'] ?? [])];
    this.facts?.set([
      { name: 'Connections', value: `${count(found['peers'])} now, ${count(found['gone'])} ended lately` },
      ...(this.program === 'broker' ? [{ name: 'Requests', value: count(sum('requests')) }] : [{ name: 'Transfers', value: count(found['transfers']) }, { name: 'Failures', value: `${count(found['failures'])} lately` }]),
      ...(first?.['user'] ? [{ name: 'User', value: visible(first['user']) }] : []),
      ...(first?.['address'] ? [{ name: 'Address', value: visible(first['address']) }] : []),
    ]);
    const more = first && !('user' in who) ? toWho(first) : null;
    const isOther = more !== null && more.slice(2) !== this.address;
    this.links?.replaceChildren(...(isOther ? [h('a', { href: more }, `All of ${visible(first['user'] ?? first['key'] ?? 'this address')}`)] : []));
  }

  /**
   * The last hour of the first follower.
   * @param {Row | undefined} follower
   */
  async #showLag(follower) {
    if (!follower || !this.chart) return;
    const name = String(follower['name'] ?? follower['user'] ?? follower['address']);
    if (this.history?.parameters['follower'] !== name) this.history = new History({ follower: name });
    const { history, chart } = this;
    await history.refresh();
    chart.element.hidden = false;
    chart.set(history, history.now);
  }
}

/** A version that a file server keeps: who has it, who doesn't, and why. */
export class VersionView extends Thing {
  /** @param {Acted} acted */
  constructor(acted) {
    super('version', acted);
  }

  begin() {
    this.version = this.parameters.get('version') ?? '';
    this.facts = facts();
    this.list = new ListView(holdersOf(this.version), { acted: this.acted });
    this.show('Version', shortDigest(this.version), h('section', { class: 'card' }, h('h2', {}, 'Now'), this.facts.element), this.list.element);
  }

  async refresh() {
    const { version, list } = this;
    if (version === undefined || !list) return;
    let reply;
    try {
      reply = await get(list.list.path, { limit: 1 });
      await list.refresh();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.setGone('This version isn’t kept here.');
      return;
    }
    if (version !== this.version) return;
    this.setGone(null);
    const row = reply['version'];
    if (row['label']) this.setName('Version', visible(row['label']));
    this.facts?.set([
      { name: 'Label', value: visible(row['label'] || NONE) },
      { name: 'Digest', value: visible(row['version']) },
      { name: 'Of', value: `/${row['path'] ? named(row, 'path') : ''}` },
      { name: 'Published', value: moment(row['published']) },
      { name: 'Content', value: row['files'] === null ? NONE : `${count(row['files'])} file${row['files'] === 1 ? '' : 's'}, ${bytes(row['bytes'])}` },
      { name: 'Have it', value: count(row['holders']) },
      { name: 'Have another', value: count(row['missing']), level: row['missing'] > 0 ? 'warn' : undefined },
    ]);
  }
}
