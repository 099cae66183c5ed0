// Addresses of the pages of one thing.

/** @typedef {import('./api.js').Row} Row */

/**
 * The page of a service. `./` shows tools for accessibility that this is no link past the tabs.
 * @param {Row} row with the service's name
 */
export function toService(row) {
  const [kind, name] = row['service_b64'] === undefined ? ['name', row['service']] : ['b64', row['service_b64']];
  return `./#service?${new URLSearchParams({ [kind]: String(name) })}`;
}

/**
 * The page of a person or peer: the best name that is known.
 * @param {Row} row with a user, key, address or peer
 * @returns {string | null}
 */
export function toWho(row) {
  const [name, value] = row['user'] ? ['user', row['user']] : row['key'] ? ['key', row['key']] : ['address', hostOf(row['address'])];
  return value ? `./#who?${new URLSearchParams({ [name]: String(value) })}` : null;
}

/** The page of a connection. @param {unknown} id */
export const toPeer = (id) => (id ? `./#who?${new URLSearchParams({ peer: String(id) })}` : null);

/** The page of a version. @param {unknown} digest */
export const toVersion = (digest) => (digest ? `./#version?${new URLSearchParams({ version: String(digest) })}` : null);

/** An address without its port. @param {unknown} address */
function hostOf(address) {
  const text = String(address ?? '');
  const parts = /^\[([0-9a-f:.]+)\]:\d+$/.exec(text) ?? /^(\d+\.\d+\.\d+\.\d+):\d+$/.exec(text);
  return parts?.[1] ?? text;
}
