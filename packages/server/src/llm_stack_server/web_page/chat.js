// The chat: turns so far, the settings, and the answer that is being streamed.

import { element } from "./elements.js";
import { ServerFault } from "./server.js";
import { TurnView, newTurn } from "./turn.js";

const NEAR_END_PX = 80; // so near to the end the view follows a growing answer
const NUMBERS = [
  ["temperature", "temperature"],
  ["top-p", "top_p"],
  ["max-tokens", "max_tokens"],
  ["seed", "seed"],
];

const at = (id) => document.getElementById(id);

/** What stands in a settings field cannot be sent. */
class WrongSetting extends Error {}

export class Chat {
  #server;
  #turns = [];
  #views = [];
  #running = null;
  #drawing = 0;

  /** @param {import("./server.js").Server} server */
  constructor(server) {
    this.#server = server;
    const message = at("message");
    at("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(message.value);
    });
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      at("composer").requestSubmit();
    });
    message.addEventListener("input", fitMessage);
    at("stop-answer").addEventListener("click", () => this.#running?.abort());
    at("clear").addEventListener("click", () => this.#clear());
    at("markdown").addEventListener("change", () => this.#drawAll());
    at("settings-fields").addEventListener("submit", (event) => event.preventDefault());
    this.#showHint();
  }

  /** Fill the list of models; what goes wrong is told in its place. */
  async loadModels() {
    const list = at("model");
    try {
      const models = await this.#server.models();
      const chosen = list.value;
      list.replaceChildren(...models.map(({ name, contextTokens }) => option(name, contextTokens)));
      if (models.some(({ name }) => name === chosen)) list.value = chosen;
    } catch (error) {
      if (!(error instanceof ServerFault)) throw error;
      if (!list.options.length) list.title = error.message;
    }
  }

  #send(text) {
    if (this.#running || !text.trim()) return;
    this.#add(newTurn("user", text));
    at("message").value = "";
    fitMessage();
    this.#answer();
  }

  /** Forget the turns from `turn` on. */
  #cut(turn) {
    const index = this.#turns.indexOf(turn);
    for (const view of this.#views.splice(index)) view.element.remove();
    this.#turns.length = index;
  }

  #clear() {
    this.#running?.abort();
    if (this.#turns.length) this.#cut(this.#turns[0]);
    this.#showHint();
    at("message").focus();
  }

  #showHint() {
    const hint = element("p", "empty", "Ask something. What is said stays in this tab.");
    at("turns").replaceChildren(hint);
  }

  #add(turn) {
    const view = new TurnView(turn, {
      edit: (text) => {
        if (this.#running) return;
        this.#cut(turn);
        this.#send(text);
      },
      again: () => {
        if (this.#running) return;
        this.#cut(turn);
        this.#answer();
      },
    });
    if (!this.#turns.length) at("turns").replaceChildren();
    this.#turns.push(turn);
    this.#views.push(view);
    view.draw(at("markdown").checked);
    at("turns").append(view.element);
    at("turns").scrollTop = at("turns").scrollHeight;
  }

  async #answer() {
    const running = new AbortController();
    const messages = this.#messages();
    const turn = newTurn("assistant");
    turn.isOpen = true;
    this.#add(turn);
    this.#setRunning(running);
    const timing = { startMs: performance.now(), firstMs: 0, lastMs: 0, usage: null, reason: null };
    let outcome = "The answer is complete.";
    try {
      const body = { ...settings(), messages };
      for await (const chunk of this.#server.chat(body, running.signal)) {
        take(turn, timing, chunk);
        this.#drawSoon();
      }
    } catch (error) {
      outcome = "The answer failed.";
      if (error.name === "AbortError") {
        timing.reason = "stopped by you";
        outcome = "Stopped.";
      } else if (error instanceof ServerFault || error instanceof WrongSetting) {
        turn.fault = told(error);
      } else {
        turn.fault = "The answer could not be read.";
        console.error(error);
      }
    }
    turn.isOpen = false;
    turn.figures = figures(timing);
    // Another answer may run by now: a cleared chat ends the old one.
    if (this.#running === running) this.#setRunning(null);
    this.#drawAll();
    at("said").textContent = outcome;
  }

  /** The conversation as the server takes it; an answer of which nothing came is left out. */
  #messages() {
    const system = at("system").value.trim() ? [{ role: "system", content: at("system").value }] : [];
    const said = this.#turns.filter((turn) => turn.text || turn.calls.length);
    return [...system, ...said.map(message)];
  }

  #setRunning(running) {
    this.#running = running;
    at("stop-answer").hidden = !running;
    at("send").hidden = Boolean(running);
    if (running) at("said").textContent = "The model answers.";
  }

  #drawSoon() {
    if (this.#drawing) return;
    this.#drawing = requestAnimationFrame(() => {
      this.#drawing = 0;
      this.#follow(() => this.#views.at(-1)?.draw(at("markdown").checked));
    });
  }

  #drawAll() {
    this.#follow(() => this.#views.forEach((view) => view.draw(at("markdown").checked)));
  }

  /** Draw; the view stays at the end if it was there. */
  #follow(draw) {
    const turns = at("turns");
    const isAtEnd = turns.scrollHeight - turns.scrollTop - turns.clientHeight < NEAR_END_PX;
    draw();
    if (isAtEnd) turns.scrollTop = turns.scrollHeight;
  }
}

/** Add what a chunk brings to the turn. */
function take(turn, timing, chunk) {
  if (chunk.usage) timing.usage = chunk.usage;
  const choice = chunk.choices[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
  if (content || reasoning || calls) {
    timing.lastMs = performance.now();
    timing.firstMs ||= timing.lastMs;
  }
  turn.text += content ?? "";
  turn.reasoning += reasoning ?? "";
  for (const part of calls ?? []) {
    turn.calls[part.index] ??= { id: part.id, name: part.function.name, text: "" };
    turn.calls[part.index].text += part.function.arguments ?? "";
  }
  timing.reason = choice.finish_reason ?? timing.reason;
}

/** The line below an answer: time to the first token, pace, tokens, why it ended. */
function figures({ startMs, firstMs, lastMs, usage, reason }) {
  const parts = [];
  if (firstMs) parts.push(`first token ${duration(firstMs - startMs)}`);
  const output = usage?.completion_tokens;
  if (output > 1 && lastMs > firstMs) {
    parts.push(`${(((output - 1) * 1000) / (lastMs - firstMs)).toFixed(1)} tokens/s`);
  }
  if (output !== undefined) parts.push(`${output} tokens out of ${usage.prompt_tokens} in`);
  if (usage?.prompt_tokens_details?.cached_tokens) {
    parts.push(`${usage.prompt_tokens_details.cached_tokens} from the cache`);
  }
  if (reason && reason !== "stop") parts.push(reason === "length" ? "ended at max tokens" : reason);
  return parts.join(" · ");
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

function told(error) {
  const status = error.status ? ` (${[error.status, error.code].filter(Boolean).join(", ")})` : "";
  const retry = error.retryAfterS ? ` Try again in ${error.retryAfterS} s.` : "";
  return `${error.message}${status}${retry}`;
}

function message(turn) {
  const made = { role: turn.role, content: turn.text };
  if (turn.calls.length) {
    made.tool_calls = turn.calls.map(({ id, name, text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
  }
  return made;
}

/** What the settings say; fields left empty are not sent, so the model's own defaults hold. */
function settings() {
  const body = at("model").value ? { model: at("model").value } : {};
  for (const [id, name] of NUMBERS) {
    const field = at(id);
    if (field.validity.badInput) throw new WrongSetting(`${name}: not a number.`);
    if (field.value !== "") body[name] = Number(field.value);
  }
  const stop = at("stop").value.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (at("tools").value.trim()) body.tools = tools(at("tools").value);
  return body;
}

function tools(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new WrongSetting(`Tools are not JSON: ${error.message}`);
  }
}

function option(name, contextTokens) {
  const made = element("option", "", name);
  made.value = name;
  made.title = `context of ${contextTokens} tokens`;
  return made;
}

function fitMessage() {
  const message = at("message");
  message.style.height = "auto";
  message.style.height = `${Math.min(message.scrollHeight, 220)}px`;
}
