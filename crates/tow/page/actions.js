// What an operator can do. Each asks first.

import { encoded, post } from './api.js';
import { ask } from './dialog.js';
import { h } from './dom.js';
import { count, named, visible } from './format.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {import('./list.js').Action} Action */

/** Whether this operator may only look: then there is nothing to do. */
let readOnly = false;

/** @param {boolean} is */
export function setReadOnly(is) {
  readOnly = is;
}

/** How long a peer may be blocked, in seconds. @type {[string, string][]} */
const TIMES = [['3600', 'an hour'], ['86400', 'a day'], ['604800', 'a week'], ['', 'until it is unblocked']];

/** Bytes of the reason that is sent to a peer. */
const REASON_BYTES_MAX = 200;

/** @param {string} name as it is shown */
function bold(name) {
  return h('b', { class: 'wire' }, name);
}

/**
 * @param {number} number
 * @param {string} one
 */
function some(number, one) {
  return `${count(number)} ${one}${number === 1 ? '' : 's'}`;
}

/**
 * Names by which a peer can be blocked, as the API takes them, and for people.
 * @param {Row} peer
 * @returns {[string, string][]}
 */
export function blockable(peer) {
  const address = String(peer['address'] ?? '');
  const ip = /^\[([0-9a-f:.]+)\]:\d+$/.exec(address)?.[1] ?? /^([\d.]+):\d+$/.exec(address)?.[1];
  const uid = /^ipc \(pid \d+, uid (\d+)\)$/.exec(address)?.[1];
  /** @type {[string, string][]} */
  const names = [];
  if (peer['user']) names.push([`user:${peer['user']}`, `user ${visible(peer['user'])}`]);
  if (peer['key']) names.push([`key:${peer['key']}`, `key ${visible(peer['key'])}`]);
  if (ip) names.push([ip, `address ${ip}`]);
  if (uid) names.push([`uid:${uid}`, `local user ${uid}`]);
  return names;
}

/**
 * @param {Row} peer
 * @returns {Action[]}
 */
export function ofPeer(peer) {
  if (readOnly) return [];
  const who = [peer['user'], peer['address']].filter(Boolean).map(visible).join(', ');
  const run = () => ask({
    title: `Disconnect peer ${visible(peer['id'])}?`,
    text: [h('p', {}, bold(who)), h('p', {}, 'Most clients reconnect, as a new peer.')],
    confirm: 'Disconnect',
    danger: true,
    input: { label: 'Reason, which is sent to the peer', maxBytes: REASON_BYTES_MAX },
    act: async (reason) => {
      await post(`peers/${encodeURIComponent(peer['id'])}/disconnect`, reason ? { reason } : {});
      return `Disconnected peer ${visible(peer['id'])}.`;
    },
  });
  return [{ label: 'Disconnect…', danger: true, run }, ...toBlock(peer)];
}

/**
 * Of a person with any number of connections.
 * @param {Row} peer one of them
 * @returns {Action[]}
 */
export function toBlock(peer) {
  if (readOnly) return [];
  const who = [peer['user'], peer['address']].filter(Boolean).map(visible).join(', ');
  const names = blockable(peer);
  const block = () => ask({
    title: `Block ${visible(peer['user'] ?? 'this peer')}?`,
    text: [h('p', {}, bold(who)), h('p', {}, 'All connections of this name or address end, and new ones are refused.'),
      ...(peer['role'] === 'client' && peer['requests'] ? [h('p', {}, 'Its requests that wait stay: they are carried out until they expire or are purged.')] : [])],
    confirm: 'Block',
    danger: true,
    choices: [{ label: 'Whom', options: names }, { label: 'How long', options: TIMES }],
    input: { label: 'Reason, which is sent to the peer', maxBytes: REASON_BYTES_MAX },
    act: async (reason, [name, time]) => {
      const done = await post('block', { who: name, seconds: time ? Number(time) : null, reason });
      const kept = done['kept'] ? '' : ' The server forgets it when it is restarted.';
      return `Blocked ${visible(done['blocked'])}; ${some(done['disconnected'], 'peer')} disconnected.${kept}`;
    },
  });
  return names.length > 0 ? [{ label: 'Block…', danger: true, run: block }] : [];
}

/**
 * @param {Row} block
 * @returns {Action[]}
 */
export function ofBlock(block) {
  if (readOnly) return [];
  const name = visible(block['who']);
  const run = () => ask({
    title: `Unblock ${name}?`,
    text: [h('p', {}, bold(name), ' can connect again.')],
    confirm: 'Unblock',
    act: async () => {
      await post('unblock', { who: block['who'] });
      return `Unblocked ${name}.`;
    },
  });
  return [{ label: 'Unblock…', run }];
}

/** How long a problem may be muted, in seconds. @type {[string, string][]} */
const MUTE_TIMES = [['3600', 'an hour'], ['14400', '4 hours'], ['86400', 'a day']];

/**
 * @param {Row} problem
 * @returns {Action[]}
 */
export function ofProblem(problem) {
  if (readOnly) return [];
  const { kind, subject } = problem;
  const run = () => ask({
    title: `Mute ${visible(subject)}?`,
    text: [h('p', {}, 'It isn’t counted meanwhile, also by ', h('code', {}, 'tow status --check'), ' and the metrics.')],
    confirm: 'Mute',
    choices: [{ label: 'How long', options: MUTE_TIMES }],
    act: async (_, [time]) => {
      await post('problems/mute', { kind, subject, seconds: Number(time) });
      return `Muted ${visible(subject)}.`;
    },
  });
  return [{ label: 'Mute…', run }];
}

/**
 * @param {Row} mute
 * @returns {Action[]}
 */
export function ofMute(mute) {
  if (readOnly) return [];
  const { kind, subject } = mute;
  const name = visible(subject ?? kind);
  const run = () => ask({
    title: `Unmute ${name}?`,
    text: [h('p', {}, 'It counts again.')],
    confirm: 'Unmute',
    act: async () => {
      await post('problems/unmute', { kind, subject });
      return `Unmuted ${name}.`;
    },
  });
  return [{ label: 'Unmute…', run }];
}

/**
 * @param {Row} service
 * @returns {Action[]}
 */
export function ofService(service) {
  if (readOnly) return [];
  const name = named(service, 'service');
  const waiting = Number(service['waiting']);
  const path = `services/${encoded(service)}`;
  const pause = () => ask({
    title: `Pause ${name}?`,
    text: [h('p', {}, 'Requests of ', bold(name), ' are accepted but not dispatched until it is resumed. Workers finish the requests in progress.')],
    confirm: 'Pause',
    act: async () => {
      await post(`${path}/pause`);
      return `Paused ${name}.`;
    },
  });
  const resume = () => ask({
    title: `Resume ${name}?`,
    text: [h('p', {}, `${some(waiting, 'request')} of `, bold(name), ` ${waiting === 1 ? 'waits' : 'wait'} for workers.`)],
    confirm: 'Resume',
    act: async () => {
      await post(`${path}/resume`);
      return `Resumed ${name}.`;
    },
  });
  const purge = () => ask({
    title: `Purge ${name}?`,
    text: [
      h('p', {}, h('b', {}, some(waiting, 'request')), ' of ', bold(name), ` ${waiting === 1 ? 'waits' : 'wait'} for a worker. All that wait when you confirm, be they more or fewer by then, ${name.startsWith('dlq.') ? 'are removed for good' : 'end with status 499'}.`),
      h('p', {}, 'Requests in progress aren’t affected.'),
    ],
    confirm: 'Purge',
    danger: true,
    act: async () => {
      const done = await post(`${path}/purge`);
      return `Purged ${some(done['purged'], 'request')} of ${name}.`;
    },
  });
  return [
    service['paused'] ? { label: 'Resume…', run: resume } : { label: 'Pause…', run: pause },
    ...(waiting > 0 ? [{ label: 'Purge…', danger: true, run: purge }] : []),
  ];
}

/**
 * @param {Row} service
 * @param {Row} request of it
 * @returns {Action[]}
 */
export function ofRequest(service, request) {
  if (readOnly || request['state'] === 'ended' || request['state'] === 'answered') return [];
  const name = named(service, 'service');
  const run = () => ask({
    title: `End request ${visible(request['id'])}?`,
    text: [h('p', {}, 'A request of ', bold(name), request['dead_letter'] ? ': a dead letter, which is removed.' : ' ends with status 499. A worker that has it is asked to cancel it.')],
    confirm: 'End',
    danger: true,
    act: async () => {
      await post(`services/${encoded(service)}/requests/${encodeURIComponent(request['id'])}/end`);
      return `Ended request ${visible(request['id'])} of ${name}.`;
    },
  });
  return [{ label: 'End…', danger: true, run }];
}

/**
 * @param {Row} dead letters of a service
 * @returns {Action[]}
 */
export function ofDeadLetters(dead) {
  if (readOnly) return [];
  const name = named(dead, 'service');
  const letters = Number(dead['letters']);
  const path = `dead-letters/${encoded(dead)}`;
  const unless = h('p', {}, 'Those in progress stay. If their number has changed by then, nothing is done.');
  const requeue = () => ask({
    title: `Requeue dead letters of ${name}?`,
    text: [h('p', {}, h('b', {}, some(letters, 'request')), ` will be sent to `, bold(name), ' again. Nobody waits for the replies.'), unless],
    confirm: `Requeue ${some(letters, 'request')}`,
    act: async () => {
      const done = await post(`${path}/requeue`, { expect: letters });
      return `Requeued ${some(done['requeued'], 'request')} of ${name}.`;
    },
  });
  const drop = () => ask({
    title: `Drop dead letters of ${name}?`,
    text: [h('p', {}, h('b', {}, some(letters, 'request')), ' of ', bold(name), ' will be removed for good.'), unless],
    confirm: `Drop ${some(letters, 'request')}`,
    danger: true,
    act: async () => {
      const done = await post(`${path}/drop`, { expect: letters });
      return `Dropped ${some(done['dropped'], 'request')} of ${name}.`;
    },
  });
  return [{ label: 'Requeue…', run: requeue }, { label: 'Drop…', danger: true, run: drop }];
}

/**
 * @param {Row} status
 * @returns {Action | null} null if the server has no such thing, or this operator may only look
 */
export function ofServer(status) {
  if (readOnly || typeof status['draining'] !== 'boolean') return null;
  const isBroker = status['program'] === 'broker';
  const what = isBroker ? 'request' : 'connection';
  const on = !status['draining'];
  const run = () => ask({
    title: on ? `Drain this ${isBroker ? 'broker' : 'server'}?` : 'Stop draining?',
    text: [h('p', {}, on
      ? `It takes no more ${what}s and finishes ${isBroker ? 'those that are here' : 'the transfers of those that are here'}. That can be undone; a restart forgets it.`
      : `It takes ${what}s again.`)],
    confirm: on ? 'Drain' : 'Stop draining',
    danger: on,
    act: async () => {
      const done = await post('drain', { on });
      return on ? `Draining: ${some(done['left'], what)} left.` : `Takes ${what}s again.`;
    },
  });
  return { label: on ? 'Drain…' : 'Stop draining…', danger: on, run };
}
