// Questions to the server, and the token for them.

const TOKEN = 'towpath-token';

/** Milliseconds that other tabs have to answer. */
const MOMENT = 100;

/** @typedef {Readonly<Record<string, any>>} Row an object of the API */

/** What the server answered instead of what was asked for. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 if there was no answer
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * The token in an address of the page. Its characters need no escapes there.
 * @param {string} address
 */
export function tokenIn(address) {
  return /#token=([^&\s]+)/.exec(address)?.[1] ?? null;
}

/**
 * Takes the token from the fragment, which reaches no server, into this tab's storage, and removes it from the address.
 * @returns {boolean} whether there was one
 */
export function takeToken() {
  const given = tokenIn(location.hash);
  if (given === null) return false;
  setToken(given);
  history.replaceState(null, '', location.pathname + location.search);
  return true;
}

/** @param {string} token */
export function setToken(token) {
  isRefused = false;
  sessionStorage.setItem(TOKEN, token.trim());
  tabs.postMessage({ token: token.trim() });
}

/** The server has refused the token: it isn't for other tabs. */
export function setRefused() {
  isRefused = true;
}

let isRefused = false;

// Tabs of this address in this browser, which have storages of their own. The token is kept nowhere that outlives them.
const tabs = new BroadcastChannel(TOKEN);

/** @type {() => void} */
let received = () => {};

tabs.onmessage = ({ data }) => {
  const own = sessionStorage.getItem(TOKEN);
  if (data === 'which token?') {
    if (own && !isRefused) tabs.postMessage({ token: own });
  } else if (typeof data?.token === 'string' && (!own || isRefused) && data.token !== own) {
    isRefused = false;
    sessionStorage.setItem(TOKEN, data.token);
    received();
  }
};

/** Calls this when another tab has given the token. @param {() => void} then */
export function onToken(then) {
  received = then;
}

/** Asks other tabs for the token, and gives them a moment. */
export function askOtherTabs() {
  tabs.postMessage('which token?');
  return new Promise((resolve) => setTimeout(resolve, MOMENT));
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(TOKEN));
}

/**
 * @param {string} path below /api/v1
 * @param {RequestInit} options
 * @returns {Promise<Row>}
 */
async function ask(path, options) {
  const headers = new Headers({ Accept: 'application/json' });
  const token = sessionStorage.getItem(TOKEN);
  if (token && /^[\x21-\x7e]+$/.test(token)) headers.set('Authorization', `Bearer ${token}`);
  if (options.method === 'POST') headers.set('Content-Type', 'application/json');
  let response;
  let text;
  try {
    response = await fetch(`api/v1/${path}`, {
      ...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error', signal: AbortSignal.timeout(20_000),
    });
    text = await response.text();
  } catch (error) {
    throw new ApiError(0, error instanceof Error && error.name === 'TimeoutError' ? 'no answer within 20 s' : 'no connection');
  }
  let reply;
  try {
    reply = JSON.parse(text);
  } catch {
    reply = { error: `${response.status} ${response.statusText}`.trim() };
  }
  if (!response.ok) throw new ApiError(response.status, String(reply?.error ?? response.status));
  return reply;
}

/**
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} [parameters]
 */
export function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== '') query.set(name, String(value));
  }
  return ask(query.size ? `${path}?${query}` : path, {});
}

/**
 * @param {string} path
 * @param {object} [body]
 */
export function post(path, body = {}) {
  return ask(path, { method: 'POST', body: JSON.stringify(body) });
}

/**
 * The name of a service as paths have it: base64 for URLs, without padding.
 * @param {Row} row
 */
export function encoded(row) {
  const bytes = new TextEncoder().encode(row['service']);
  const base64 = row['service_b64'] ?? btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
  return base64.replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}
