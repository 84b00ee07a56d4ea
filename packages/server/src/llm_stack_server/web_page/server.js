// Speaks to the server that this page came from: adds the key, turns refusals into errors with a reason.

import { readEvents } from "./event_stream.js";

const KEY_NAME = "llm-stack-key";
const UNAUTHORIZED = 401;
const CUT_OFF = "The connection ended before the answer did.";

/** A refusal or a failure, with what a person needs to know. */
export class ServerFault extends Error {
  /**
   * @param {string} message What is wrong.
   * @param {{status?: number, code?: string, retryAfterS?: number}} more What the server told.
   */
  constructor(message, more = {}) {
    super(message);
    this.status = more.status;
    this.code = more.code;
    this.retryAfterS = more.retryAfterS;
  }
}

export class Server {
  #storage;
  #onKeyNeeded;

  /**
   * @param {Storage} storage Where the key is kept; never in a URL.
   * @param {(isWrong: boolean) => void} onKeyNeeded Called where the server answers 401.
   */
  constructor(storage, onKeyNeeded) {
    this.#storage = storage;
    this.#onKeyNeeded = onKeyNeeded;
  }

  /** Whether a key is sent. */
  get hasKey() {
    return this.#storage.getItem(KEY_NAME) !== null;
  }

  set key(key) {
    if (key) this.#storage.setItem(KEY_NAME, key);
    else this.#storage.removeItem(KEY_NAME);
  }

  /** "ready", the code of what is in the way, or "unreachable". Needs no key. */
  async standing() {
    try {
      const response = await fetch("health/ready", { cache: "no-store" });
      if (response.ok) return "ready";
      return (await response.json()).error.code ?? "not ready";
    } catch {
      return "unreachable";
    }
  }

  /** The names under which models are served, each with its context in tokens. */
  async models() {
    const response = await this.#ask("v1/models");
    const { data } = await response.json();
    return data.map((card) => ({ name: card.id, contextTokens: card.max_model_len }));
  }

  /** All metrics, as OpenMetrics text. */
  async metricsText() {
    const accept = "application/openmetrics-text; version=1.0.0";
    const response = await this.#ask("metrics", { headers: { accept }, cache: "no-store" });
    return response.text();
  }

  /**
   * The chunks of a streamed chat answer.
   *
   * @param {object} body As /v1/chat/completions takes it, without `stream`.
   * @param {AbortSignal} signal Ends the answer.
   */
  async *chat(body, signal) {
    const response = await this.#ask("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    for await (const data of eventsOf(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerFault(chunk.error.message, { code: chunk.error.code });
      yield chunk;
    }
    throw new ServerFault(CUT_OFF);
  }

  async #ask(path, options = {}) {
    const headers = new Headers(options.headers);
    const key = this.#storage.getItem(KEY_NAME);
    if (key) headers.set("authorization", `Bearer ${key}`);
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerFault("The server cannot be reached.", { code: "unreachable" });
    }
    if (response.ok) return response;
    if (response.status === UNAUTHORIZED) this.#onKeyNeeded(true);
    throw await faultOf(response);
  }
}

async function* eventsOf(response) {
  try {
    yield* readEvents(response.body);
  } catch (error) {
    throw error instanceof TypeError ? new ServerFault(CUT_OFF) : error; // what fetch calls a broken connection
  }
}

async function faultOf(response) {
  const retryAfterS = Number(response.headers.get("retry-after")) || undefined;
  const more = { status: response.status, retryAfterS };
  try {
    const { error } = await response.json();
    return new ServerFault(error.message, { ...more, code: error.code });
  } catch {
    return new ServerFault(response.statusText || "The server refused.", more);
  }
}
