// The dialog before an action: it names what is done to what, and to how many.

import { append, h } from './dom.js';
import { ApiError } from './api.js';
import { visible } from './format.js';

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {import('./dom.js').Child[]} text
 * @property {string} confirm the button's label
 * @property {boolean} [danger]
 * @property {{ label: string, options: [string, string][] }[]} [choices] each with values and their labels
 * @property {{ label: string, maxBytes: number }} [input]
 * @property {(input: string, chosen: string[]) => Promise<string>} act does it, and says what was done
 */

let count = 0;

/**
 * Asks, and acts if the answer is yes. While it acts the dialog stays. A refusal is shown in it, and then it can only be closed. When it
 * closes, focus goes back to where it was.
 * @param {Question} question
 * @returns {Promise<string | null>} what was done; null if nothing was
 */
export function ask({ title, text, confirm, danger, choices = [], input, act }) {
  const before = document.activeElement;
  const id = `dialog-${count += 1}`;
  const field = input ? h('input', { type: 'text', id: `${id}-input`, autocomplete: 'off', spellcheck: 'false' }) : null;
  const selects = choices.map(({ options }, index) => h('select', { id: `${id}-choice-${index}` }, ...options.map(([value, label]) => h('option', { value }, label))));
  const alert = h('p', { role: 'alert', class: 'refusal' });
  const yes = h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, confirm);
  const no = h('button', { type: 'button' }, 'Cancel');
  const body = h('div', { id: `${id}-text` });
  append(body, text);
  const form = h('form', {}, h('h2', { id: `${id}-title` }, title), body,
    ...selects.map((select, index) => h('p', { class: 'field' }, h('label', { for: select.id }, choices[index]?.label ?? ''), select)),
    input && field ? h('p', { class: 'field' }, h('label', { for: field.id }, input.label), field) : null,
    alert, h('p', { class: 'buttons' }, no, yes));
  const dialog = h('dialog', { 'aria-labelledby': `${id}-title`, 'aria-describedby': `${id}-text` }, form);
  return new Promise((resolve) => {
    /** @type {string | null} */
    let done = null;
    /** The action, while it runs. @type {Promise<void> | null} */
    let acting = null;
    no.addEventListener('click', () => dialog.close());
    dialog.addEventListener('cancel', (event) => {
      if (acting) event.preventDefault();
    });
    dialog.addEventListener('close', async () => {
      dialog.remove();
      // Some browsers close a dialog when Escape is pressed twice, whatever the page says.
      await acting;
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(done);
    });
    const run = async (/** @type {string} */ given) => {
      try {
        done = await act(given, selects.map((select) => /** @type {HTMLSelectElement} */ (select).value));
        dialog.close();
      } catch (error) {
        const reason = visible(error instanceof Error ? error.message : error);
        alert.textContent = error instanceof ApiError && error.status > 0 ? `Refused: ${reason}` : `Failed: ${reason}`;
        yes.hidden = true;
        no.disabled = false;
        no.textContent = 'Close';
        no.focus();
      }
      acting = null;
    };
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (yes.disabled) return;
      const given = field?.value.trim() ?? '';
      if (input && new TextEncoder().encode(given).length > input.maxBytes) {
        alert.textContent = `At most ${input.maxBytes} bytes.`;
        return;
      }
      yes.disabled = true;
      no.disabled = true;
      alert.textContent = '';
      acting = run(given);
    });
    document.body.append(dialog);
    dialog.showModal();
    (selects[0] ?? field ?? no).focus();
  });
}
