// Ties the page together: which view is shown, whether the server is ready, and the key.

import { Chat } from "./chat.js";
import { Charts } from "./charts.js";
import { Server } from "./server.js";

const STANDING_INTERVAL_MS = 2000;
const STANDINGS = {
  ready: ["good", "ready"],
  starting: ["warm", "loading the model"],
  engine_restarting: ["warm", "the engine restarts"],
  engine_stalled: ["bad", "the engine does not answer"],
  engine_dead: ["bad", "the engine is gone"],
  draining: ["warm", "shutting down"],
  unreachable: ["bad", "unreachable"],
};

const at = (id) => document.getElementById(id);

const server = new Server(sessionStorage, askForKey);
const chat = new Chat(server);
const charts = new Charts(server);
let standing = "";
let isKeyRefused = false; // a person closed the question for a key: it is not put again until they do something

function showView() {
  const name = location.hash === "#charts" ? "charts" : "chat";
  for (const each of ["chat", "charts"]) {
    at(`view-${each}`).hidden = each !== name;
    if (each === name) at(`tab-${each}`).setAttribute("aria-current", "page");
    else at(`tab-${each}`).removeAttribute("aria-current");
  }
  document.title = name === "charts" ? "Charts · LLM Stack" : "LLM Stack";
  isKeyRefused = false;
  if (name === "charts") charts.show();
}


async function checkStanding() {
  if (!document.hidden) {
    const now = await server.standing();
    if (now !== standing) {
      standing = now;
      const [kind, text] = STANDINGS[now] ?? ["warm", now];
      at("dot").className = `dot ${kind}`;
      at("standing").textContent = text;
      if (now === "ready") chat.loadModels();
    }
  }
  setTimeout(checkStanding, STANDING_INTERVAL_MS);
}

function askForKey(isWrong) {
  const dialog = at("key-dialog");
  if (dialog.open || (isWrong && isKeyRefused)) return;
  at("key-why").textContent = isWrong
    ? "The server refused the request without a valid key. A key is kept in this tab until the tab is closed."
    : "It is sent with each request, and kept in this tab until the tab is closed.";
  at("key").value = "";
  dialog.showModal();
}

function useKey(key) {
  server.key = key;
  at("key-dialog").close();
  isKeyRefused = false;
  chat.loadModels();
  charts.restart();
}

at("open-key").addEventListener("click", () => askForKey(false));
at("forget-key").addEventListener("click", () => useKey(""));
at("cancel-key").addEventListener("click", () => {
  at("key-dialog").close();
  isKeyRefused = true;
});
at("key-dialog").addEventListener("cancel", () => (isKeyRefused = true)); // Escape
at("composer").addEventListener("submit", () => (isKeyRefused = false));
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key").value.trim());
});
at("fold-settings").addEventListener("click", () => {
  const open = at("settings").classList.toggle("open");
  at("fold-settings").setAttribute("aria-expanded", String(open));
});
addEventListener("hashchange", showView);
showView();
checkStanding();
