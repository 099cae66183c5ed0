// The first view: problems, three charts, and totals.

import { cellFacts } from './cell.js';
import { Chart } from './charts.js';
import { facts, h, setText } from './dom.js';
import { byteRate, bytes, count, label, member, moment, named, perSecond, short, visible } from './format.js';
import { Lately } from './history.js';
import { ProblemList } from './problems.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {import('./history.js').History} History */
/** @typedef {import('./dom.js').Fact} Fact */

export class Overview {
  /**
   * @param {string} program
   * @param {() => import('./list.js').Action | null} action of the server
   * @param {(done: string | null) => void} acted
   */
  constructor(program, action, acted) {
    this.id = 'overview';
    this.title = 'Overview';
    const isBroker = program === 'broker';
    this.charts = [
      isBroker
        ? new Chart({ title: 'Requests', format: perSecond, axis: short, lines: [{ name: 'requests_in', label: 'in' }, { name: 'requests_out', label: 'out' }, { name: 'requests_failed', label: 'failed' }] })
        : new Chart({ title: 'Network', format: byteRate, axis: bytes, binary: true, lines: [{ name: 'sent_bytes', label: 'sent' }, { name: 'received_bytes', label: 'received' }] }),
      isBroker
        ? new Chart({ title: 'In flight', format: count, axis: short, lines: [{ name: 'requests', label: 'unconfirmed' }, { name: 'waiting', label: 'waiting for a worker' }] })
        : new Chart({ title: 'Transfers', format: count, axis: short, lines: [{ name: 'transfers', label: 'transfers' }, { name: 'waiting', label: 'waiting' }] }),
      new Chart({
        title: 'Peers', format: count, axis: short,
        lines: [{ name: 'peers', label: 'connected' }, ...(isBroker ? [{ name: 'workers', label: 'workers' }] : [])],
      }),
    ];
    this.problems = new ProblemList(acted);
    this.lately = new Lately();
    this.server = facts();
    this.limits = facts();
    this.sums = facts();
    this.cell = facts();
    this.cellCard = h('section', { class: 'card', hidden: 'hidden' }, h('h2', {}, 'Cell'), this.cell.element);
    this.button = h('button', { type: 'button', onclick: async () => {
      const now = action();
      if (now) acted(await now.run());
    } });
    this.action = action;
    this.element = h('div', { class: 'view' },
      h('h1', { class: 'hidden', tabindex: '-1' }, 'Overview'),
      this.problems.element,
      h('div', { class: 'charts' }, ...this.charts.map((chart) => chart.element)),
      this.lately.element,
      h('div', { class: 'columns' },
        h('section', { class: 'card' }, h('h2', {}, 'Server'), this.server.element, h('p', { class: 'buttons' }, this.button)),
        this.cellCard,
        h('section', { class: 'card' }, h('h2', {}, 'Limits'), this.limits.element),
        h('section', { class: 'card' }, h('h2', {}, 'Totals since the start'), this.sums.element)));
  }

  get address() {
    return '#overview';
  }

  enter() {}

  async refresh() {}

  /**
   * @param {Row} status
   * @param {import('./problems.js').Problems} problems
   * @param {History} history
   */
  set(status, problems, history) {
    for (const chart of this.charts) chart.set(history, history.now);
    this.lately.set(history);
    this.problems.set(problems, status);
    this.server.set(serverFacts(status));
    this.limits.set(limitFacts(status));
    this.sums.set(sumFacts(status));
    this.cellCard.hidden = !status['cell'];
    this.cell.set(status['cell'] ? cellFacts(status['cell']) : []);
    const action = this.action();
    this.button.hidden = action === null;
    if (action) setText(this.button, action.label);
  }
}

/**
 * @param {Row} status
 * @returns {Fact[]}
 */
function serverFacts(status) {
  const endpoints = /** @type {unknown[]} */ (status['endpoints'] ?? []);
  const catalogue = status['catalogue'];
  /** @type {(Fact | null)[]} */
  const given = [
    status['root'] === undefined ? null : { name: 'Serves', value: visible(status['root']) },
    { name: 'Listens on', value: endpoints.map(visible).join(', ') || '–' },
    { name: 'Started', value: moment(status['started']) },
    { name: 'Process', value: `tow ${visible(status['program'])} ${visible(status['version'])}, pid ${status['pid']}` },
    status['journal'] === undefined ? null : { name: status['cell'] ? 'Log' : 'Journal', value: status['journal'] === null ? 'none' : visible(status['journal']), level: status['journal'] === 'failed' ? 'bad' : undefined },
    ...neverEnds(status),
    catalogue ? { name: 'Publishes', value: `${count(catalogue['paths'])} paths, number ${count(catalogue['seq'])}${catalogue['complete'] ? '' : ', not read completely yet'}` } : null,
    catalogue ? { name: 'Followers', value: `${count(catalogue['followers'])}, the last ${count(catalogue['behind'])} behind` } : null,
  ];
  return given.filter((fact) => fact !== null);
}

/**
 * Work that a drain waits for in vain.
 * @param {Row} status
 * @returns {Fact[]}
 */
function neverEnds(status) {
  const left = /** @type {Row[]} */ (status['left_never'] ?? []);
  const of = (/** @type {Row} */ one) => `${one['service'] === null ? '' : `${named(one, 'service')}: `}${count(one['count'])}, ${visible(one['reason'])}`;
  return left.length === 0 ? [] : [{ name: 'Never ends', value: left.map(of).join('; '), level: 'bad' }];
}

/** How connections ended. @type {Record<string, string>} */
const GONE = { closed: 'by the peer', protocol: 'for a protocol violation', handshake: 'during the handshake', other: 'for other reasons' };

/**
 * What is used of what there is.
 * @param {string} name
 * @param {number} used
 * @param {number} most
 * @param {(value: unknown) => string} format
 * @returns {Fact}
 */
export function limit(name, used, most, format) {
  const share = most > 0 ? used / most : 0;
  return { name, value: `${format(used)} of ${format(most)}`, share, level: share >= 0.9 ? 'bad' : share >= 0.7 ? 'warn' : undefined };
}

/**
 * @param {Row} status
 * @returns {Fact[]}
 */
function limitFacts(status) {
  const spool = status['spool'];
  const pools = /** @type {Row[]} */ (status['pools'] ?? []);
  const quotas = /** @type {Row[]} */ (status['quotas'] ?? []);
  return [
    ...(status['memory_bytes_max'] ? [limit('Memory', status['memory_bytes'], status['memory_bytes_max'], bytes)] : []),
    ...(spool ? [limit('Spool', spool['bytes'], spool['most'], bytes), limit('Spooled files', spool['files'], spool['most_files'], count)] : []),
    { name: 'Queued for peers', value: bytes(status['queued_bytes']) },
    ...quotas.map((quota) => limit(label(visible(quota['name'])), quota['used'], quota['max'], /bytes|memory/.test(quota['name']) ? bytes : short)),
    ...pools.map((pool) => ({
      name: `Threads, ${visible(pool['name'])}`,
      value: `${count(pool['running'])} busy, ${count(pool['waiting'])} jobs waiting${pool['hung'] ? `, ${count(pool['hung'])} hung` : ''}`,
      level: pool['hung'] ? 'bad' : undefined,
    })),
  ];
}

/**
 * @param {Row} status
 * @returns {Fact[]}
 */
function sumFacts(status) {
  const counters = Object.entries(status['counters'] ?? {});
  const gone = Object.entries(status['gone'] ?? {}).filter(([, number]) => number > 0).map(([how, number]) => `${count(number)} ${visible(GONE[how] ?? how)}`);
  return [
    { name: 'Sent', value: `${bytes(status['sent_bytes'])}${status['sendfile_bytes'] ? `, ${bytes(status['sendfile_bytes'])} of it by sendfile` : ''}` },
    { name: 'Received', value: bytes(status['received_bytes']) },
    { name: 'Messages', value: `${count(status['sent_messages'])} out, ${count(status['received_messages'])} in` },
    { name: 'Connections ended', value: gone.join(', ') || 'none' },
    ...counters.map(([name, value]) => ({ name: label(visible(name)), value: member(name, value) })),
  ];
}
