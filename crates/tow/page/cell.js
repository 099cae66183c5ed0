// A broker's cell: who leads, all members, and the queue in NATS.

import { limit } from './overview.js';
import { bytes, count, seconds, visible } from './format.js';

/** @typedef {import('./api.js').Row} Row */
/** @typedef {import('./dom.js').Fact} Fact */

/** Clocks that differ by less aren't mentioned, in seconds. */
const SKEW = 0.5;

/**
 * @param {Row} cell
 * @returns {Fact[]}
 */
export function cellFacts(cell) {
  const members = /** @type {Row[]} */ (cell['members'] ?? []);
  const queue = /** @type {Row} */ (cell['queue'] ?? {});
  const wrong = /** @type {unknown[]} */ ([cell['failure'], cell['bodies_failure'], cell['nats_failure'], ...(queue['wrong'] ?? [])].filter((why) => why !== null));
  const since = cell['led_seconds'] === null ? '' : ` for ${seconds(cell['led_seconds'])}`;
  return [
    { name: 'Name', value: `${visible(cell['name'])}, epoch ${count(cell['epoch'])}` },
    { name: 'This broker', value: visible(cell['role']), level: cell['role'] === 'catching up' ? 'warn' : undefined },
    { name: 'Leader', value: cell['leader'] ? `${visible(cell['leader'])}${since}` : 'none yet' },
    ...members.map(memberFact),
    limit('Queue', queue['bytes'], queue['bytes_max'], bytes),
    { name: 'Needed of it', value: bytes(queue['needed_bytes']) },
    natsFact(queue),
    ...wrong.map((why, index) => ({ name: index === 0 ? 'Wrong' : `Wrong, ${index + 1}`, value: visible(why), level: 'bad' })),
  ];
}

/**
 * @param {Row} member
 * @returns {Fact}
 */
function memberFact(member) {
  const name = `Member ${visible(member['endpoint'])}`;
  if (!member['there']) return { name, value: `missing for ${seconds(member['age_seconds'])}`, level: 'bad' };
  const said = [visible(member['role']) + (member['self'] ? ' (this one)' : '')];
  if (member['role'] !== 'leading') said.push(member['behind'] ? `${count(member['behind'])} messages behind` : 'up to date');
  const skew = member['skew_seconds'];
  if (Math.abs(skew) >= SKEW) said.push(`clock ${skew > 0 ? '+' : '−'}${Math.abs(skew).toFixed(1)} s`);
  if (member['failure'] !== null) said.push(visible(member['failure']));
  return { name, value: said.join(', '), level: member['failure'] !== null || Math.abs(skew) > 1 ? 'warn' : undefined };
}

/**
 * @param {Row} queue
 * @returns {Fact}
 */
function natsFact(queue) {
  const followers = /** @type {Row[]} */ (queue['nats_followers'] ?? []);
  const nodes = followers.map((node) => `${visible(node['name'])} ${visible(node['state'])}`);
  if (queue['nats_leader'] !== null) nodes.unshift(`${visible(queue['nats_leader'])} leads the stream`);
  const isBad = followers.some((node) => node['state'] !== 'current');
  return { name: 'NATS', value: [`${count(queue['replicas'])} replicas`, ...nodes].join(', '), level: isBad ? 'warn' : undefined };
}
