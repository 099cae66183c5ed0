// The lists of a server, and how they are shown.

import { encoded, get } from './api.js';
import { ofBlock, ofDeadLetters, ofPeer, ofRequest, ofService } from './actions.js';
import { h } from './dom.js';
import { toPeer, toService, toVersion, toWho } from './links.js';
import { ago, byteRate, bytes, count, moment, named, NONE, seconds, visible } from './format.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {import('./table.js').Column} Column */
/** @typedef {import('./list.js').List} List */

/**
 * A column of text from the wire.
 * @param {string} id
 * @param {string} label
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
function text(id, label, more = {}) {
  return { id, label, text: (row) => (row[id] === null || row[id] === undefined || row[id] === '' ? NONE : visible(row[id])), by: id, sort: (row) => row[id], ...more };
}

/**
 * A column of names, which need not be UTF-8.
 * @param {string} id
 * @param {string} label
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
function name(id, label, more = {}) {
  return text(id, label, { wide: true, text: (row) => nameOf(row, id), ...more });
}

/**
 * @param {Row} row
 * @param {string} id
 */
const nameOf = (row, id) => (row[id] === null || row[id] === undefined || row[id] === '' ? NONE : named(row, id));

/** A service, as a key. @param {Row} row */
const serviceOf = (row) => `${row['service']} ${row['service_b64'] ?? ''}`;

/**
 * A column of numbers.
 * @param {string} id
 * @param {string} label
 * @param {(value: unknown) => string} format
 * @param {Partial<Column>} [more]
 * @returns {Column}
 */
function number(id, label, format, more = {}) {
  // Rates are made here.
  return { id, label, numeric: true, by: id.endsWith('_rate') ? undefined : id, text: (row) => format(row[id]), sort: (row) => row[id], ...more };
}

/** The page of an address. @param {Row} row */
const toAddress = (row) => toWho({ address: row['address'] });

/** @param {Row} row */
const whoOf = (row) => [row['follower'], row['user'], row['address']].filter(Boolean).map(visible).join(' · ') || NONE;

/** @type {List} */
const peers = {
  id: 'peers',
  title: 'Peers',
  path: 'peers',
  member: 'peers',
  about: 'Connected peers, with the real address of each connection.',
  empty: 'No peer is connected.',
  key: (row) => row['id'],
  name: (row) => `Peer ${visible(row['id'])}`,
  rates: ['received_bytes', 'sent_bytes'],
  page: (row) => toPeer(row['id']),
  actions: ofPeer,
  columns: [
    text('id', 'Peer', { link: (row) => toPeer(row['id']) }),
    text('address', 'Address', { wide: true, link: toAddress }),
    text('user', 'User', { priority: 3, link: toWho }),
    { id: 'role', label: 'Role', by: 'role', priority: 2, link: (row) => (row['service'] ? toService(row) : null), text: (row) => [row['role'] && visible(row['role']), row['service'] && named(row, 'service')].filter(Boolean).join(' of ') || NONE },
    text('through', 'Through', { priority: 2, rare: true }),
    text('protocol', 'Protocol', { priority: 3 }),
    number('connected_seconds', 'Connected', seconds, { priority: 2 }),
    number('heard_seconds', 'Silent for', ago, { priority: 3 }),
    number('received_rate', 'In', byteRate, { priority: 2 }),
    number('sent_rate', 'Out', byteRate, { priority: 2 }),
    number('queued_bytes', 'Queued', bytes),
    { id: 'work', label: 'In progress', numeric: true, priority: 3, sort: (row) => row['requests'] ?? row['transfers'], text: (row) => count(row['requests'] ?? row['transfers']) },
  ],
};

/** @type {List} */
const gone = {
  id: 'gone',
  title: 'Disconnected',
  path: 'peers/gone',
  member: 'gone',
  about: 'The last 1,000 disconnects with their reasons, the last 100 connections that ended during the handshake, and the last 100 blocked peers that tried to connect. Newest first.',
  empty: 'No peer has disconnected yet.',
  // A blocked address has no id, and another port each time.
  key: (row) => row['id'] ?? String(row['address']).replace(/:\d+$/, ''),
  name: (row) => (row['id'] ? `Peer ${visible(row['id'])}, disconnected` : `${visible(row['address'])}, blocked`),
  page: toWho,
  columns: [
    text('id', 'Peer'),
    { id: 'who', label: 'Who', by: 'address', link: toWho, text: whoOf },
    number('gone_seconds', 'Ago', ago),
    number('lasted_seconds', 'Connected for', seconds, { priority: 2 }),
    number('received_bytes', 'Received', bytes, { priority: 3 }),
    number('sent_bytes', 'Sent', bytes, { priority: 3 }),
    { id: 'handshake', label: 'Handshake', by: 'handshake', priority: 3, text: (row) => (row['handshake'] ? 'completed' : 'not completed'), level: (row) => (row['handshake'] ? null : 'warn') },
    text('reason', 'Reason', { wide: true, text: (row) => `${visible(row['reason'])}${Number(row['attempts']) > 1 ? ` (${count(row['attempts'])} attempts)` : ''}` }),
  ],
};

/** Why a transfer is slow, as `waits_for` has it. @type {Record<string, string>} */
const CAUSES = {
  client_rate: 'limits itself',
  server_rate: 'this server’s --bwlimit',
  frozen: 'the client is frozen',
  network: 'slow network',
  send_buffer: 'this server’s TCP send buffer',
  receive_buffer: 'the client’s TCP receive buffer',
  client_disk: 'the client’s disk',
  credit: 'no credit from the client',
  receiver: 'the client reads slowly',
  sender: 'the client sends slowly',
  disk: 'this server’s disk',
  hash: 'this server’s hashing',
  pool: 'no free thread',
  open_files: 'the limit on open files',
};

/** @param {Row} row */
const shareOf = (row) => {
  const [done, total] = row['all_total_bytes'] === null ? [row['done_bytes'], row['total_bytes']] : [row['all_done_bytes'], row['all_total_bytes']];
  return total > 0 ? Math.min(1, done / total) : null;
};

/** @param {Row} row */
const movedOf = (row) => row[row['kind'] === 'push' ? 'received_bytes' : 'sent_bytes'];

/** @param {Row} row */
const causeOf = (row) => (row['waits_for'] ? CAUSES[row['waits_for']] ?? visible(row['waits_for']) : NONE);

/** @type {List} */
const transfers = {
  id: 'transfers',
  title: 'Transfers',
  path: 'transfers',
  member: 'transfers',
  about: 'Fetches and pushes in progress, and why each is slow.',
  empty: 'No transfer is in progress.',
  words: { waits_for: causeOf, seconds_left: (row) => seconds(row['seconds_left']), bytes_per_second_before: (row) => byteRate(row['bytes_per_second_before']) },
  key: (row) => `${row['peer']} ${row['kind'] ?? ''} ${row['id'] ?? ''}`,
  name: (row) => nameOf(row, 'path'),
  page: (row) => toPeer(row['peer']),
  actions: (row) => ofPeer({ ...row, id: row['peer'] }),
  columns: [
    { id: 'who', label: 'Who', by: 'address', text: (row) => visible(row['follower'] ?? row['user'] ?? row['address'] ?? '') },
    text('path', 'Path', { wide: true, priority: 2, text: (row) => nameOf(row, 'path') }),
    {
      id: 'progress', label: 'Progress', numeric: true, sort: shareOf, share: shareOf,
      text: (row) => {
        const share = shareOf(row);
        const done = share === null ? NONE : `${Math.floor(100 * share)} %`;
        return row['files'] > 1 ? `${done} of ${count(row['files'])} files` : done;
      },
    },
    { id: 'waits_for', label: 'Slow because of', by: 'waits_for', text: causeOf, level: (row) => (row['waits_for'] ? 'warn' : null) },
    { id: 'stalled_seconds', label: 'Stalled for', numeric: true, by: 'stalled_seconds', sort: (row) => row['stalled_seconds'], text: (row) => (row['stalled_seconds'] >= 2 ? seconds(row['stalled_seconds']) : NONE), level: (row) => (row['stalled_seconds'] >= 2 ? 'warn' : null) },
    number('bytes_per_second', 'Rate', byteRate, { priority: 2 }),
    number('bytes_per_second_before', 'A minute ago', byteRate, { priority: 3 }),
    number('seconds_left', 'Left', seconds, { priority: 2 }),
    { id: 'bytes', label: 'Bytes', numeric: true, priority: 3, sort: movedOf, text: (row) => bytes(movedOf(row)) },
    text('peer', 'Peer', { priority: 3, link: (row) => toPeer(row['peer']) }),
  ],
};

/** @type {List} */
const services = {
  id: 'services',
  title: 'Services',
  path: 'services',
  member: 'services',
  about: 'Request queues and their workers.',
  empty: 'There are no services: no worker has registered, and no request has arrived.',
  key: serviceOf,
  name: (row) => named(row, 'service'),
  page: toService,
  actions: ofService,
  columns: [
    name('service', 'Service'),
    { id: 'state', label: 'State', sort: (row) => stateOf(row)[0], text: (row) => stateOf(row)[0], level: (row) => stateOf(row)[1] },
    number('waiting', 'Waiting', count),
    number('oldest_seconds', 'Oldest', seconds, { priority: 2 }),
    number('memory_bytes', 'Memory', bytes, { priority: 3 }),
    number('waiting_spooled_bytes', 'Spooled', bytes, { priority: 3 }),
    number('unconfirmed', 'Unconfirmed', count, { priority: 2 }),
    number('failed', 'Failed', count, { priority: 2 }),
    number('workers', 'Workers', count),
  ],
};

/**
 * The followers of a version: those that lack it, then those that have it.
 * @param {string} version its digest
 * @returns {List}
 */
export const holdersOf = (version) => ({
  ...followers,
  id: 'holders',
  title: 'Those that lack it, then those that have it',
  path: `versions/${encoded({ service: version })}`,
  empty: 'No follower of this path is known.',
  isPart: true,
  columns: [
    .../** @type {Column[]} */ (followers.columns.filter(({ id }) => id === 'name')),
    { id: 'has', label: 'Has it', by: 'has', text: (/** @type {Row} */ row) => (row['has'] ? '✓ yes' : '✕ no'), level: (/** @type {Row} */ row) => (row['has'] ? 'good' : 'warn') },
    ...followers.columns.filter(({ id }) => ['state', 'error', 'lacks_bytes', 'seconds_left', 'waits_for', 'said_seconds'].includes(id)),
  ],
});

/**
 * @param {Row} row
 * @returns {[string, string | null]}
 */
function stateOf(row) {
  if (row['paused']) return ['‖ paused', 'bad'];
  if (row['waiting'] > 0 && row['workers'] === 0) return ['▲ no worker', 'warn'];
  return ['✓ runs', null];
}

/** Failures in a row from which a worker is a problem. */
const FAILURES = 5;

/** @type {List} */
const workers = {
  id: 'workers',
  title: 'Workers',
  path: 'workers',
  member: 'workers',
  about: 'Workers, with their requests in progress and their credit.',
  empty: 'There are no workers.',
  key: (row) => `${row['peer']} ${serviceOf(row)}`,
  name: (row) => `Worker of ${named(row, 'service')}`,
  page: (row) => toPeer(row['peer']),
  actions: (row) => (row['peer'] ? ofPeer({ ...row, id: row['peer'] }) : []),
  columns: [
    text('peer', 'Peer', { link: (row) => toPeer(row['peer']) }),
    name('service', 'Service', { link: toService }),
    text('address', 'Address', { priority: 2, link: toAddress }),
    text('user', 'User', { priority: 2, link: toWho }),
    text('protocol', 'Protocol', { priority: 3 }),
    number('busy_seconds', 'Busy for', seconds, { priority: 2 }),
    number('failed_in_a_row', 'Failed in a row', count, { priority: 2, text: (row) => `${row['failed_in_a_row'] >= FAILURES ? '▲ ' : ''}${count(row['failed_in_a_row'])}`, level: (row) => (row['failed_in_a_row'] >= FAILURES ? 'warn' : null) }),
    { id: 'held', label: 'In progress', numeric: true, by: 'held', sort: (row) => row['held'], text: (row) => `${count(row['held'])} of ${count(row['credit'])}`, share: (row) => (row['credit'] > 0 ? row['held'] / row['credit'] : null) },
  ],
};

/** States of a request, as people say them. @type {Record<string, string>} */
const STATES = { waiting: 'waiting', held_back: 'held back', postponed: 'postponed', worker: 'with a worker', answered: 'answered here', ended: 'ended, unconfirmed' };

/**
 * The requests of a service.
 * @param {Row} service
 * @returns {List}
 */
export const requestsOf = (service) => ({
  id: 'requests',
  title: 'Requests',
  path: `services/${encoded(service)}/requests`,
  member: 'requests',
  about: '',
  empty: 'There are no requests.',
  isPart: true,
  key: (row) => row['id'],
  name: (row) => `Request ${visible(row['id'])}`,
  words: { seconds: (row) => seconds(row['seconds']) },
  page: (row) => toPeer(row['peer']),
  pageLabel: 'Its client',
  actions: (row) => ofRequest(service, row),
  columns: [
    text('id', 'Request'),
    { id: 'state', label: 'State', by: 'state', text: (row) => STATES[row['state']] ?? visible(row['state']) },
    number('seconds', 'For', seconds),
    text('client', 'Client', { wide: true, link: (row) => (row['peer'] ? toPeer(row['peer']) : null) }),
    text('worker', 'Worker', { priority: 2, link: (row) => toPeer(row['worker']) }),
    number('attempts', 'Attempts', count, { priority: 2 }),
    number('bytes', 'Size', bytes, { priority: 2 }),
    number('expires_seconds', 'Expires in', seconds, { priority: 3 }),
  ],
});

/**
 * The workers of a service.
 * @param {Row} service
 * @returns {List}
 */
export const workersOf = (service) => ({
  ...workers,
  isPart: true,
  fixed: service['service_b64'] === undefined ? { service: service['service'] } : { service_b64: service['service_b64'] },
  columns: workers.columns.filter(({ id }) => id !== 'service'),
});

/** @type {List} */
const deadLetters = {
  id: 'dead-letters',
  title: 'Dead letters',
  path: 'dead-letters',
  member: 'dead_letters',
  about: 'Requests that used up their attempts, kept by service until they are requeued or dropped.',
  empty: 'There are no dead letters.',
  key: serviceOf,
  name: (row) => `Dead letters of ${named(row, 'service')}`,
  page: toService,
  actions: ofDeadLetters,
  columns: [
    name('service', 'Service'),
    number('letters', 'Letters', count, { level: () => 'bad' }),
    number('oldest_seconds', 'Oldest', seconds),
    number('workers', 'Workers', count),
  ],
  more: async (row) => {
    const reply = await get(`dead-letters/${encoded(row)}`, { limit: 50 });
    const letters = /** @type {Row[]} */ (reply['letters'] ?? []);
    const lines = letters.map((letter) => h('tr', {},
      h('th', { scope: 'row' }, visible(letter['id'])), h('td', { class: 'number' }, bytes(letter['bytes'])),
      h('td', { class: 'number' }, seconds(letter['kept_seconds'])), h('td', {}, visible(letter['state'])), h('td', { class: 'number' }, count(letter['attempts'])),
      h('td', {}, visible(letter['client'] ?? '–')), h('td', {}, visible(letter['worker'] ?? '–')), h('td', {}, visible(letter['reason'] ?? '–'))));
    const heads = [['Number', ''], ['Size', 'number'], ['Kept for', 'number'], ['State', ''], ['Attempts', 'number'], ['Client', ''], ['Worker', ''], ['Reason', '']]
      .map(([name, type]) => h('th', { scope: 'col', class: type }, name));
    return h('div', {}, h('h3', {}, reply['next'] === null ? 'Letters' : 'The oldest letters'),
      h('table', {}, h('caption', { class: 'hidden' }, 'Letters'), h('thead', {}, h('tr', {}, ...heads)), h('tbody', {}, ...lines)));
  },
};

/** @type {List} */
const followers = {
  id: 'followers',
  title: 'Followers',
  path: 'followers',
  member: 'followers',
  publishes: true,
  about: 'Followers, what each lacks and why: first connected ones, then others by their last report.',
  empty: 'There are no followers.',
  words: { waits_for: causeOf },
  key: (row) => (row['peer'] ? `${row['peer']} ${row['id'] ?? ''}` : `${row['name']} ${row['copy'] ?? ''} ${row['user'] ?? ''} ${row['via'] ?? ''}`),
  name: (row) => (row['name'] ? visible(row['name']) : `Peer ${visible(row['peer'])}`),
  page: (row) => toPeer(row['peer']) ?? (row['user'] ? toWho(row) : null),
  columns: [
    { id: 'name', label: 'Follower', by: 'name', wide: true, text: (row) => visible(row['name'] ?? row['user'] ?? row['address'] ?? row['peer']) },
    { id: 'from', label: 'From', by: 'address', priority: 2, text: (row) => (row['via'] ? `via ${visible(row['via'])}` : row['peer'] ? visible(row['address'] ?? 'connected') : 'not connected') },
    { id: 'path', label: 'Follows', by: 'path', priority: 2, text: followsOf },
    { id: 'state', label: 'State', by: 'state', text: (row) => followerStateOf(row)[0], level: (row) => followerStateOf(row)[1] },
    { id: 'error', label: 'Error', by: 'error', wide: true, text: errorOf, level: (row) => (row['error'] ? 'bad' : null) },
    number('behind', 'Behind', count, { text: (row) => (lacksVersion(row) ? NONE : count(row['behind'])) }),
    number('behind_seconds', 'Behind for', seconds, { text: (row) => (lacksVersion(row) ? NONE : seconds(row['behind_seconds'])) }),
    number('lacks_bytes', 'Lacks', bytes),
    number('seconds_left', 'Time left', seconds, { priority: 2 }),
    { id: 'waits_for', label: 'Slow because of', by: 'waits_for', priority: 2, text: causeOf, level: (row) => (row['waits_for'] ? 'warn' : null) },
    { id: 'copy', label: 'Copy', by: 'copy', priority: 3, text: (row) => (row['copy'] ? visible(row['copy']).slice(0, 8) : NONE) },
    { id: 'version', label: 'Version', by: 'version', priority: 3, link: (row) => toVersion(row['version']), text: (row) => shortDigest(row['version']) },
    number('said_seconds', 'Last report', ago, { priority: 3 }),
  ],
};

/** Whether it isn't changes that a follower lacks. @param {Row} row */
const lacksVersion = (row) => row['has_newest'] === false && row['behind'] === 0;

/**
 * What is followed: versions of a path, or a path or glob.
 * @param {Row} row
 */
function followsOf(row) {
  if (row['versions_of'] != null) return `versions of /${named(row, 'versions_of')}`;
  const of = row['path'] == null ? 'glob' : 'path';
  return row[of] == null ? NONE : `/${named(row, of)}`;
}

/**
 * @param {Row} row
 * @returns {[string, string | null]}
 */
function followerStateOf(row) {
  return FOLLOWER_STATES[row['state']] ?? [visible(row['state'] ?? NONE), null];
}

/** @type {Record<string, [string, string | null]>} */
const FOLLOWER_STATES = {
  up_to_date: ['✓ up to date', 'good'],
  sent: ['○ sent', null],
  behind: ['▲ behind', 'warn'],
  failing: ['✕ failing', 'bad'],
  gone: ['▲ gone', 'warn'],
  ended: ['○ ended', null],
  never_seen: ['▲ never seen', 'warn'],
};

/**
 * A follower's error in its own words, and how often.
 * @param {Row} row
 */
function errorOf(row) {
  if (!row['error']) return NONE;
  return `${visible(row['error'])} (${count(row['error_tries'])} ${row['error_tries'] === 1 ? 'try' : 'tries'}, for ${seconds(row['error_seconds'])})`;
}

/** @param {unknown} digest */
export function shortDigest(digest) {
  return digest ? visible(digest).slice(0, 12) : NONE;
}

/** @type {List} */
const versions = {
  id: 'versions',
  title: 'Versions',
  path: 'versions',
  member: 'versions',
  publishes: true,
  about: 'Published versions, oldest first, and how many followers have each.',
  empty: 'No version has been published.',
  key: (row) => `${row['seq']} ${row['version']}`,
  name: (row) => (row['label'] ? visible(row['label']) : `Version ${shortDigest(row['version'])}`),
  page: (row) => toVersion(row['version']),
  linked: true,
  columns: [
    text('label', 'Version', { wide: true, link: (row) => toVersion(row['version']) }),
    { id: 'path', label: 'Of', by: 'path', priority: 2, text: (row) => `/${row['path'] ? named(row, 'path') : ''}` },
    { id: 'version', label: 'Digest', by: 'version', priority: 2, text: (row) => shortDigest(row['version']) },
    { id: 'published', label: 'Published', by: 'published', sort: (row) => row['published'], text: (row) => moment(row['published']) },
    number('seq', 'Number', count, { priority: 3 }),
    number('files', 'Files', count, { priority: 2 }),
    number('bytes', 'Size', bytes, { priority: 2 }),
    number('holders', 'Have it', count),
    number('missing', 'Lack it', count),
  ],
};

/** @type {List} */
const failures = {
  id: 'failures',
  title: 'Failures',
  path: 'failures',
  member: 'failures',
  about: 'The last 200 requests that were refused or failed, with the reasons. Newest first.',
  empty: 'No request has failed.',
  key: (row) => `${row['peer']} ${row['kind']} ${row['code']} ${row['path']} ${row['path_b64'] ?? ''}`,
  name: (row) => `${visible(row['kind'])} of ${nameOf(row, 'path')}`,
  columns: [
    number('ago_seconds', 'Ago', ago),
    text('kind', 'Request'),
    name('path', 'Path'),
    number('count', 'Files', count, { priority: 3 }),
    { id: 'who', label: 'Who', by: 'address', priority: 2, link: toWho, text: whoOf },
    text('code', 'Code', { level: () => 'warn' }),
    text('reason', 'Reason', { priority: 2, wide: true }),
  ],
};

/** @type {List} */
const blocked = {
  id: 'blocked',
  title: 'Blocked',
  path: 'blocked',
  member: 'blocked',
  about: 'Peers that operators have blocked, newest first.',
  empty: 'Nobody is blocked.',
  key: (row) => row['who'],
  name: (row) => visible(row['who']),
  actions: ofBlock,
  columns: [
    text('who', 'Who', { wide: true }),
    number('left_seconds', 'Ends in', (value) => (value === null ? 'never' : seconds(value))),
    number('refused', 'Refused', count),
    number('refused_seconds', 'Last', (value) => (value === null ? NONE : ago(value)), { priority: 3 }),
    { id: 'since', label: 'Since', priority: 3, text: (row) => moment(row['since']), sort: (row) => row['since'] },
    text('by', 'By', { priority: 2 }),
    text('reason', 'Reason', { priority: 2, wide: true }),
  ],
};

/** @type {List} */
const audit = {
  id: 'audit',
  title: 'Audit',
  path: 'audit',
  member: 'audit',
  about: 'The last 200 actions of operators, newest first. With --audit, also those before a restart.',
  empty: 'No actions yet.',
  key: (row) => `${row['time']} ${row['address']} ${row['action']} ${row['object']} ${row['object_b64'] ?? ''}`,
  name: (row) => `${visible(row['action'])} ${row['object'] ? named(row, 'object') : ''}`,
  columns: [
    { id: 'time', label: 'Time', by: 'time', text: (row) => moment(Date.parse(row['time']) / 1000), sort: (row) => row['time'] },
    text('by', 'By'),
    text('action', 'Action'),
    name('object', 'Of'),
    { id: 'parameters', label: 'Parameters', priority: 3, text: (row) => (row['parameters'] ? visible(JSON.stringify(row['parameters'])) : NONE) },
    number('count', 'Count', count, { priority: 2 }),
    text('address', 'From', { priority: 3 }),
    text('outcome', 'Outcome', { wide: true, level: (row) => (row['outcome'] === 'done' ? null : 'warn') }),
  ],
};

/** Lists of each kind of server, in the order of the tabs. The overview is before them. */
export const LISTS = {
  serve: [peers, transfers, followers, versions, failures, gone, blocked, audit],
  broker: [peers, services, workers, deadLetters, gone, blocked, audit],
};
