// Numbers and names as people read them.

const counts = new Intl.NumberFormat('en');
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** What a value is replaced by that isn't there. */
export const NONE = '–';

// Everything that is invisible, moves other text, or only looks like a space.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]|(?! )\p{Zs}/gu;

/**
 * Text from the wire, with invisible characters escaped as Rust writes them: it can neither turn around nor hide other text.
 * @param {unknown} text
 */
export function visible(text) {
  const escaped = (/** @type {string} */ one) => {
    if (one === '\n') return '\\n';
    if (one === '\t') return '\\t';
    return `\\u{${(one.codePointAt(0) ?? 0).toString(16)}}`;
  };
  return String(text).replace(INVISIBLE, escaped);
}

/**
 * A name, which need not be UTF-8: the member `NAME_b64` has its bytes then. Bytes beyond ASCII are escaped as Rust writes them, and
 * backslashes in all names, so that those that differ look different.
 * @param {Readonly<Record<string, any>>} row
 * @param {string} member
 */
export function named(row, member) {
  const encoded = row[`${member}_b64`];
  if (typeof encoded !== 'string') return visible(String(row[member]).replaceAll('\\', '\\\\'));
  const escaped = (/** @type {string} */ byte) => `\\x${byte.charCodeAt(0).toString(16)}`;
  return visible(atob(encoded).replaceAll('\\', '\\\\').replace(/[\x80-\xff]/g, escaped));
}

/** @param {unknown} value */
function number(value) {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/** @param {unknown} value */
export function count(value) {
  const given = number(value);
  return given === null ? NONE : counts.format(Math.round(given));
}

/**
 * Bytes with three digits: `8.00 MiB`.
 * @param {unknown} value
 */
export function bytes(value) {
  const given = number(value);
  if (given === null) return NONE;
  let unit = 0;
  let left = Math.abs(given);
  while (left >= 1000 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || left >= 100 ? 0 : left >= 10 ? 1 : 2;
  return `${given < 0 ? '−' : ''}${left.toFixed(digits)} ${UNITS[unit]}`;
}

/** @param {unknown} value */
export function byteRate(value) {
  return number(value) === null ? NONE : `${bytes(value)}/s`;
}

/**
 * A count each second, short enough for an axis: `1.2k`.
 * @param {unknown} value
 */
export function short(value) {
  const given = number(value);
  if (given === null) return NONE;
  for (const [size, unit] of /** @type {const} */ ([[1e9, 'G'], [1e6, 'M'], [1e3, 'k']])) {
    if (given >= size) return `${(given / size).toFixed(given >= 100 * size ? 0 : 1).replace(/\.0$/, '')}${unit}`;
  }
  return given >= 10 || Number.isInteger(given) ? counts.format(Math.round(given)) : given.toFixed(1);
}

/** @param {unknown} value */
export function perSecond(value) {
  return number(value) === null ? NONE : `${short(value)}/s`;
}

/**
 * A duration in its two largest units: `3 d 4 h`.
 * @param {unknown} value
 */
export function seconds(value) {
  const given = number(value);
  if (given === null) return NONE;
  if (given < 0.0995) return given === 0 ? '0 s' : `${(given * 1000).toFixed(given < 0.00995 ? 1 : 0)} ms`;
  if (given < 10) return `${given.toFixed(1).replace(/\.0$/, '')} s`;
  const whole = Math.round(given);
  if (whole < 60) return `${whole} s`;
  const [minutes, hours, days] = [Math.floor(whole / 60), Math.floor(whole / 3600), Math.floor(whole / 86400)];
  if (hours < 1) return minutes < 10 && whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  if (days < 1) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return days < 10 && hours % 24 ? `${days} d ${hours % 24} h` : `${counts.format(days)} d`;
}

/**
 * How long ago something was that may be now.
 * @param {unknown} value
 */
export function ago(value) {
  const given = number(value);
  return given !== null && given < 1 ? '< 1 s' : seconds(given);
}

/**
 * The time of day, in the browser's zone.
 * @param {Date} date
 */
export function clock(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}

/**
 * Date and time of a moment, in seconds since 1970, with the browser's zone.
 * @param {unknown} value
 */
export function moment(value) {
  const given = number(value);
  if (given === null) return NONE;
  const date = new Date(given * 1000);
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, '0'));
  const east = -date.getTimezoneOffset();
  const zone = [Math.floor(Math.abs(east) / 60), Math.abs(east) % 60].map((part) => String(part).padStart(2, '0')).join(':');
  return `${day.join('-')} ${clock(date)} ${east < 0 ? '-' : '+'}${zone}`;
}

/**
 * A member's name for people: `sent_bytes` is `sent`.
 * @param {string} member
 */
export function label(member) {
  const words = member.replace(/_(bytes|seconds)$/, '').replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/**
 * A member's value for people, by its name: sizes, durations, and text as it is.
 * @param {string} member
 * @param {unknown} value
 */
export function member(member, value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value === 'number') {
    if (/^(published|started)$/.test(member)) return moment(value);
    if (/^id$|seq$/.test(member)) return String(value);
    if (/_bytes$|^bytes$|_bytes_max$/.test(member)) return bytes(value);
    if (/_seconds(_last|_max)?$/.test(member)) return seconds(value);
    if (/_rate$|_per_second$/.test(member)) return byteRate(value);
    return count(value);
  }
  return visible(typeof value === 'string' ? value : JSON.stringify(value));
}
