// Charts of a history, with marks for what happened.

import { h, setAttribute, setText } from './dom.js';
import { clock, visible } from './format.js';
import { signOf } from './history.js';

/** @typedef {import('./history.js').History} History */

/** Seconds that a chart shows at most, and at least. */
const KEPT = 60 * 60;
const SHOWN = 2 * 60;

const HEIGHT = 150;

/** Seconds between an event and the pointer. */
const NEAR = 15;

/** Between marks of an axis. */
const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const DECIMAL_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

/**
 * @typedef {object} Line
 * @property {string} name of the history
 * @property {string} label
 */

/** A chart of up to three lines, the second one dashed, the third one dotted. */
export class Chart {
  /**
   * @param {object} options
   * @param {string} options.title
   * @param {readonly Line[]} options.lines
   * @param {(value: unknown) => string} options.format
   * @param {(value: unknown) => string} [options.axis]
   * @param {boolean} [options.binary] the axis is in powers of two
   */
  constructor({ title, lines, format, axis, binary }) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.axis = axis ?? format;
    this.steps = binary ? BINARY_STEPS : DECIMAL_STEPS;
    // So that an idle server's noise isn't drawn as mountains.
    this.least = binary ? 4096 : 4;
    this.numbers = lines.map(() => h('b', {}));
    this.time = h('span', { class: 'time' });
    const keys = lines.map((line, index) =>
      h('li', {}, h('span', { class: `key key-${index + 1}`, 'aria-hidden': 'true' }), `${line.label} `, this.numbers[index]));
    this.plot = h('div', { class: 'plot', role: 'img', 'aria-label': title });
    this.element = h('section', { class: 'card chart' }, h('h2', {}, title, this.time), h('ul', { class: 'keys' }, ...keys), this.plot);
    /** @type {import('uplot') | null} */
    this.uplot = null;
    /** @type {History | null} */
    this.history = null;
    this.now = 0;
    new ResizeObserver(() => this.#resize()).observe(this.plot);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.uplot?.redraw(false));
  }

  /**
   * @param {History} history
   * @param {number} now
   */
  set(history, now) {
    this.history = history;
    this.now = now;
    if (!this.plot.clientWidth) return;
    const data = /** @type {import('uplot').AlignedData} */ ([history.times, ...this.lines.map((line) => history.of(line.name))]);
    const plot = this.uplot ??= new uPlot(this.#options(), data, this.plot);
    plot.setData(data);
    this.#legend(pointed(plot));
    const latest = this.lines.map((line) => `${line.label} ${this.format(history.of(line.name).at(-1) ?? null)}`);
    setAttribute(this.plot, 'aria-label', `${this.title}: ${latest.join(', ')}`);
  }

  #resize() {
    if (this.uplot && this.plot.clientWidth) this.uplot.setSize({ width: this.plot.clientWidth, height: HEIGHT });
    else if (this.history) this.set(this.history, this.now);
  }

  /** @param {number | null} index of the sample under the pointer */
  #legend(index) {
    const history = this.history;
    if (!history) return;
    const at = index ?? history.times.length - 1;
    this.lines.forEach((line, number) => {
      const place = this.numbers[number];
      if (place) setText(place, this.format(history.of(line.name)[at] ?? null));
    });
    const time = history.times[at];
    setText(this.time, index !== null && time !== undefined ? `${clock(new Date(time * 1000))}${this.#eventsAt(history, time)}` : '');
  }

  /**
   * What happened at about this time.
   * @param {History} history
   * @param {number} time
   */
  #eventsAt(history, time) {
    const [first, ...more] = history.events.filter((event) => Math.abs(event['time'] - time) <= NEAR);
    return first ? ` ${signOf(first)} ${visible(first['text'])}${more.length ? ` and ${more.length} more` : ''}` : '';
  }

  /**
   * Draws a mark at the time of each event.
   * @param {import('uplot')} plot
   */
  #mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = color('--muted');
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const event of this.history?.events ?? []) {
      const x = Math.round(plot.valToPos(event['time'], 'x', true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** @returns {import('uplot').Options} */
  #options() {
    const grid = { stroke: () => color('--line'), width: 1 };
    const axis = { stroke: () => color('--muted'), grid, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    const span = () => Math.min(KEPT, Math.max(SHOWN, this.now - (this.history?.times[0] ?? this.now)));
    return {
      width: this.plot.clientWidth,
      height: HEIGHT,
      padding: [10, 16, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: true, range: () => [this.now - span(), this.now] },
        y: { range: (_, __, most) => [0, Math.max(this.least, 1.1 * (most ?? 0))] },
      },
      axes: [
        { ...axis, space: 64, values: (_, splits) => splits.map((time) => clock(new Date(time * 1000)).slice(0, 5)), incrs: [60, 120, 300, 600, 900, 1200, 1800], size: 24, gap: 4 },
        { ...axis, size: (_, marks) => 14 + 6.4 * Math.max(2, ...(marks ?? []).map((mark) => mark.length)), gap: 6, space: 30, incrs: this.steps, values: (_, splits) => splits.map((value) => this.axis(value)) },
      ],
      series: [
        {},
        ...this.lines.map((line, index) => ({
          label: line.label,
          stroke: () => color(`--series-${index + 1}`),
          fill: index === 0 ? () => color('--series-fill') : undefined,
          width: 1.75,
          dash: [undefined, [5, 4], [2, 3]][index],
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [(plot) => this.#legend(pointed(plot))], drawAxes: [(plot) => this.#mark(plot)] },
    };
  }
}

/**
 * The sample under the pointer.
 * @param {import('uplot')} plot
 */
function pointed({ cursor }) {
  return cursor.left === undefined || cursor.left < 0 ? null : cursor.idx ?? null;
}

/** @param {string} name */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
