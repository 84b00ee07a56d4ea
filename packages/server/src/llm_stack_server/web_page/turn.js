// One turn of a conversation on the screen. Knows nothing of the server.

import { button, element } from "./elements.js";
import { MarkdownView } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model" };

/**
 * @typedef {object} Turn
 * @property {"user"|"assistant"} role
 * @property {string} text
 * @property {string} reasoning
 * @property {{id: string, name: string, text: string}[]} calls
 * @property {string} figures What is shown below the answer.
 * @property {string} fault What went wrong; "" for nothing.
 * @property {boolean} isOpen Whether more is to come.
 */

/** A turn with nothing in it yet. */
export function newTurn(role, text = "") {
  return { role, text, reasoning: "", calls: [], figures: "", fault: "", isOpen: false };
}

export class TurnView {
  #turn;
  #markdown;
  #body = element("div", "body");
  #reasoning = element("pre");
  #thoughts;
  #calls = element("div", "calls");
  #figures = element("p", "figures");
  #fault = element("p", "fault");
  #bar = element("div", "actions");
  #actions;

  /**
   * @param {Turn} turn What is shown; call `draw` after each change.
   * @param {{edit: (text: string) => void, again: () => void}} actions What the buttons do.
   */
  constructor(turn, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.#thoughts = element("details", "thoughts", element("summary", "", "Reasoning"), this.#reasoning);
    this.element = element(
      "article",
      `turn ${turn.role}`,
      element("h2", "", NAMES[turn.role]),
      this.#thoughts,
      this.#body,
      this.#calls,
      this.#fault,
      element("footer", "", this.#figures, this.#bar),
    );
    this.#fault.setAttribute("role", "alert");
    this.#addButtons();
  }

  /** Show the turn as it is now; `asMarkdown` holds for answers only. */
  draw(asMarkdown) {
    const turn = this.#turn;
    this.#drawText(asMarkdown && turn.role === "assistant");
    setText(this.#reasoning, turn.reasoning);
    this.#thoughts.hidden = !turn.reasoning;
    this.#drawCalls();
    setText(this.#figures, turn.figures);
    setText(this.#fault, turn.fault);
    this.#fault.hidden = !turn.fault;
    this.#bar.hidden = turn.isOpen;
    this.element.classList.toggle("open", turn.isOpen);
    this.element.setAttribute("aria-busy", String(turn.isOpen));
  }

  #drawText(asMarkdown) {
    if (asMarkdown !== Boolean(this.#markdown)) this.#body.replaceChildren();
    this.#body.classList.toggle("plain", !asMarkdown);
    if (asMarkdown) {
      this.#markdown ??= new MarkdownView(this.#body);
      this.#markdown.show(this.#turn.text);
    } else {
      this.#markdown = undefined;
      setText(this.#body, this.#turn.text);
    }
    this.#body.hidden = !this.#turn.text && !this.#turn.isOpen;
  }

  #drawCalls() {
    this.#turn.calls.forEach((call, index) => {
      let card = this.#calls.children[index];
      if (!card) {
        card = element("div", "call", element("h3", "", "Calls ", element("code")), element("pre"));
        this.#calls.append(card);
      }
      setText(card.querySelector("code"), call.name);
      setText(card.querySelector("pre"), indented(call.text));
    });
  }

  #addButtons() {
    const copy = button("Copy", "quiet", async () => {
      await navigator.clipboard.writeText(this.#turn.text);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    // Browsers give pages the clipboard on https and loopback only.
    if (navigator.clipboard) this.#bar.append(copy);
    if (this.#turn.role === "user") this.#bar.append(button("Edit", "quiet", () => this.#edit()));
    else this.#bar.append(button("Try again", "quiet", () => this.#actions.again()));
  }

  #edit() {
    const field = element("textarea");
    field.value = this.#turn.text;
    field.rows = Math.min(12, this.#turn.text.split("\n").length + 1);
    field.setAttribute("aria-label", "Message");
    const close = () => {
      form.remove();
      this.#body.hidden = this.#bar.hidden = false;
    };
    const form = element("form", "edit", field);
    const cancel = button("Cancel", "quiet", close);
    const send = element("button", "main", "Send again");
    form.append(element("div", "row", cancel, send));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.#actions.edit(field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.#body.hidden = this.#bar.hidden = true;
    this.#body.after(form);
    field.focus();
  }
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** JSON spaced out where it is whole; while it arrives, as it is. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
