// What is wrong with the server, as it says, with what can be done about it.

import { ofDeadLetters, ofMute, ofPeer, ofProblem, ofService } from './actions.js';
import { h, Keyed, setAttribute, setText } from './dom.js';
import { count, seconds, visible } from './format.js';
import { toPeer, toService } from './links.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {import('./list.js').Action} Action */

/**
 * @typedef {object} Problems
 * @property {readonly Row[]} problems the gravest first
 * @property {number} critical how many there are, also of those that aren't listed
 * @property {number} warning
 * @property {readonly Row[]} [mutes] kinds and subjects that aren't counted for a time
 */

/** @type {Problems} */
export const NONE_KNOWN = { problems: [], critical: 0, warning: 0 };

/** Views that show more of a problem. @type {Record<string, string>} */
const VIEWS = {
  no_worker: 'services', paused: 'services', full: 'services', waiting_long: 'services', worker_busy: 'workers', worker_silent: 'workers',
  worker_fails: 'workers', dead_letters: 'dead-letters', journal_failed: 'journal', journal_slow: 'journal', refused: 'peers', large_client: 'peers',
  cell_stopped: 'journal', bodies_away: 'journal', follower_failing: 'followers', version_missing: 'versions', follower_behind: 'followers', follower_gone: 'followers', threads_hang: 'transfers',
};

/** Views that are searched for the name of a person or peer. */
const SEARCHED = ['peers', 'followers'];

/** The view of a problem. @param {Row} problem */
export const viewOf = (problem) => VIEWS[problem['kind']];

/**
 * Where more of it is shown.
 * @param {Row} problem
 */
function linkOf(problem) {
  const view = viewOf(problem);
  if (!view) return null;
  if (view === 'services' && problem['service'] !== null) return toService(problem);
  if (problem['peer'] !== null) return toPeer(problem['peer']);
  const name = visible(problem['subject']).replace(/^(follower|user) /, '');
  return SEARCHED.includes(view) ? `./#${view}?${new URLSearchParams({ search: name })}` : `./#${view}`;
}

/**
 * What can be done about it here.
 * @param {Row} problem
 * @returns {Action[]}
 */
function actionsOf(problem) {
  return [...cureOf(problem), ...ofProblem(problem)];
}

/**
 * @param {Row} problem
 * @returns {Action[]}
 */
function cureOf(problem) {
  const evidence = problem['evidence'] ?? {};
  const { service, service_b64, peer, kind } = problem;
  const named = service_b64 === undefined ? { service } : { service, service_b64 };
  if (kind === 'dead_letters') return ofDeadLetters({ ...named, letters: evidence['letters'] });
  if (peer !== null) return ofPeer({ id: peer, address: problem['subject'] });
  if (service !== null) return ofService({ ...named, waiting: evidence['waiting'], paused: kind === 'paused' });
  return [];
}

/** How many there are. @param {Problems} all */
export const countOf = (all) => all.critical + all.warning;

export class ProblemList {
  /** @param {(done: string | null) => void} acted */
  constructor(acted) {
    this.acted = acted;
    this.verdict = h('p', { class: 'verdict' });
    this.restart = h('p', { class: 'restart note' });
    /** @type {Map<string, Row>} */
    this.now = new Map();
    const list = h('ul', { class: 'loud' });
    this.list = new Keyed(list, keyOf, (problem) => this.#make(problem), update);
    this.more = h('p', { class: 'note', hidden: true });
    const muted = h('ul', { class: 'muted' });
    this.mutes = new Keyed(muted, keyOf, (mute) => this.#makeMute(mute), updateMute);
    this.element = h('section', { class: 'problems' }, h('div', { class: 'heading' }, h('h2', {}, 'Problems'), this.verdict, this.restart), list, this.more, muted);
  }

  /**
   * @param {Problems} all
   * @param {Row} [status] of the server, where a restart is shown
   */
  set(all, status = {}) {
    setText(this.restart, restartOf(status));
    const number = countOf(all);
    setText(this.verdict, number === 0 ? '✓ No problems known' : `▲ ${count(number)} ${number === 1 ? 'problem' : 'problems'}`);
    setAttribute(this.verdict, 'data-level', number === 0 ? 'good' : all.critical > 0 ? 'bad' : 'warn');
    this.now = new Map(all.problems.map((problem) => [keyOf(problem), problem]));
    this.list.set(all.problems);
    this.mutes.set(all.mutes ?? []);
    const more = number - all.problems.length;
    this.more.hidden = more <= 0;
    setText(this.more, `and ${count(more)} more`);
  }

  /** @param {Row} mute */
  #makeMute(mute) {
    const button = (/** @type {Action} */ { label, run }) => h('button', {
      type: 'button',
      'aria-label': `${label} ${visible(mute['subject'] ?? mute['kind'])}`,
      onclick: async () => this.acted(await run()),
    }, label);
    return h('li', {}, h('span', {}), ' ', ...ofMute(mute).map(button));
  }

  /** @param {Row} problem */
  #make(problem) {
    const key = keyOf(problem);
    const link = linkOf(problem);
    const button = (/** @type {Action} */ { label, danger }) => h('button', {
      type: 'button',
      class: danger ? 'danger' : '',
      'aria-label': `${label} ${visible(problem['subject'])}`,
      onclick: async () => {
        // As it is now.
        const now = this.now.get(key);
        const action = now && actionsOf(now).find((one) => one.label === label);
        if (action) this.acted(await action.run());
      },
    }, label);
    return h('li', {},
      h('b', { class: 'name' }), h('span', { class: 'age' }), h('span', { class: 'cause' }), h('span', { class: 'advice' }),
      h('span', { class: 'buttons' }, link && h('a', { href: link, 'aria-label': `Show: ${visible(problem['subject'])}` }, 'Show'), ...actionsOf(problem).map(button)));
  }
}

/**
 * The consequences of a restart at once.
 * @param {Row} status
 */
function restartOf(status) {
  const restart = status['restart'];
  if (!restart) return '';
  const costs = [
    restart['lost'] > 0 ? `${count(restart['lost'])} would be lost` : '',
    restart['again'] > 0 ? `${count(restart['again'])} ${status['program'] === 'serve' ? 'would be interrupted' : 'run again'}` : '',
  ].filter(Boolean).join(', ');
  const kept = costs && !restart['lost'] ? 'nothing is lost; ' : '';
  return `Restart now: ${restart['safe'] ? 'safe' : kept + costs || 'not safe'} (${visible(restart['why'])})`;
}

/** @param {Row} problem */
const keyOf = (problem) => `${problem['kind']} ${problem['subject']}`;

/**
 * @param {HTMLElement} element
 * @param {Row} problem
 */
function update(element, problem) {
  const [name, age, cause, advice] = element.children;
  const isCritical = problem['severity'] === 'critical';
  setAttribute(element, 'data-level', isCritical ? 'bad' : 'warn');
  if (name) setText(name, `${isCritical ? '✕' : '▲'} ${visible(problem['subject'])}`);
  if (age) setText(age, seconds(problem['seconds']));
  if (cause) setText(cause, visible(problem['cause']));
  if (advice) setText(advice, visible(problem['advice']).replaceAll('`', ''));
}

/**
 * @param {HTMLElement} element
 * @param {Row} mute
 */
function updateMute(element, mute) {
  const [what] = element.children;
  const of = mute['subject'] === null ? '' : ` of ${visible(mute['subject'])}`;
  if (what) setText(what, `Muted: ${visible(mute['kind'])}${of} for another ${seconds(mute['left_seconds'])}, by ${visible(mute['by'])}`);
}
