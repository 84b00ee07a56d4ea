// Shows Markdown as elements: headings, lists, quotes, tables, code, emphasis, links. No HTML, no images:
// what is not known stays text. It never makes HTML of a string, and links lead to http(s) only.

import { element } from "./elements.js";

const FENCE = /^(\s*)(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 8; // of quotes, lists and emphasis; deeper ones stay text

/** Keeps a container's children equal to a growing text; only what changed is made anew. */
export class MarkdownView {
  #container;
  #sources = [];

  constructor(container) {
    this.#container = container;
  }

  /** Show `text`. */
  show(text) {
    const blocks = splitBlocks(text.split("\n"));
    const sources = blocks.map((block) => block.join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.#sources[same]) same++;
    while (this.#container.children.length > same) this.#container.lastChild.remove();
    for (const block of blocks.slice(same)) this.#container.append(renderBlock(block, 0));
    this.#sources = sources;
  }
}

/** Lines by block; blank lines between blocks are left out, and each block makes one element. */
function splitBlocks(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const end = endOfBlock(lines, at);
    blocks.push(lines.slice(at, end));
    at = end;
  }
  return blocks;
}

function endOfBlock(lines, start) {
  if (FENCE.test(lines[start])) return endOfFence(lines, start);
  if (HEADING.test(lines[start]) || RULE.test(lines[start])) return start + 1;
  if (ITEM.test(lines[start])) return endOfList(lines, start);
  const goesOn = QUOTE.test(lines[start])
    ? (line) => line.trim() && !FENCE.test(line)
    : (line) => line.trim() && !beginsBlock(line);
  let at = start + 1;
  while (at < lines.length && goesOn(lines[at])) at++;
  return at;
}

function endOfFence(lines, start) {
  const mark = FENCE.exec(lines[start])[2];
  for (let at = start + 1; at < lines.length; at++) if (closes(mark, lines[at])) return at + 1;
  return lines.length;
}

function endOfList(lines, start) {
  let at = start + 1;
  while (at < lines.length) {
    const line = lines[at];
    if (/^\s/.test(line) && FENCE.test(line)) {
      at = endOfFence(lines, at); // code of an item, wherever its lines begin
      continue;
    }
    if (!line.trim()) {
      const next = lines[at + 1] ?? "";
      if (!(ITEM.test(next) && !RULE.test(next)) && !/^\s{2,}\S/.test(next)) return at;
    } else if (/^\S/.test(line) && (!ITEM.test(line) || RULE.test(line))) {
      if (beginsBlock(line) || !lines[at - 1].trim()) return at;
    }
    at++;
  }
  return at;
}

function closes(mark, line) {
  const found = /^\s*(`{3,}|~{3,})\s*$/.exec(line);
  return Boolean(found) && found[1][0] === mark[0] && found[1].length >= mark.length;
}

function beginsBlock(line) {
  return [FENCE, HEADING, RULE, ITEM, QUOTE].some((pattern) => pattern.test(line));
}

function renderBlock(lines, depth) {
  const fence = FENCE.exec(lines[0]);
  if (fence) return codeBlock(fence, lines);
  const heading = HEADING.exec(lines[0]);
  if (heading) return withInline(element(`h${Math.min(6, heading[1].length + 2)}`), heading[2].replace(/\s#+\s*$/, ""));
  if (RULE.test(lines[0])) return element("hr");
  if (depth < MAX_DEPTH && QUOTE.test(lines[0])) {
    const inner = lines.map((line) => QUOTE.exec(line)?.[1] ?? line);
    return element("blockquote", "", ...splitBlocks(inner).map((block) => renderBlock(block, depth + 1)));
  }
  if (depth < MAX_DEPTH && ITEM.test(lines[0])) return list(lines, depth);
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  return withInline(element("p"), lines.join("\n"));
}

function codeBlock(fence, lines) {
  const [, indent, mark, info] = fence;
  const isClosed = lines.length > 1 && closes(mark, lines.at(-1));
  const inner = lines.slice(1, isClosed ? -1 : undefined);
  const starts = inner.filter((line) => line.trim()).map((line) => line.search(/\S/));
  const margin = Math.min(indent.length, ...starts);
  const code = element("code", "", inner.map((line) => line.slice(margin)).join("\n"));
  const block = element("pre", "", code);
  block.tabIndex = 0; // it may scroll, so the keyboard must reach it
  const language = info.trim().split(/\s/)[0];
  if (language) block.dataset.language = language;
  return block;
}

function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const isNumbered = /\d/.test(marker);
  const made = element(isNumbered ? "ol" : "ul");
  if (isNumbered) made.start = parseInt(marker, 10);
  let item = [];
  const close = () => {
    if (item.length) made.append(listItem(item, depth));
    item = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const found = ITEM.exec(lines[at]);
    if (found && found[1].length <= indent.length + 1) {
      close();
      item = [found[3]];
    } else if (FENCE.test(lines[at])) {
      const end = endOfFence(lines, at);
      item.push(...lines.slice(at, end));
      at = end - 1;
    } else {
      item.push(lines[at]);
    }
  }
  close();
  return made;
}

function listItem(lines, depth) {
  const margin = Math.min(...lines.slice(1).filter((line) => line.trim()).map((line) => line.search(/\S/)), 8);
  const inner = [lines[0], ...lines.slice(1).map((line) => line.slice(Math.min(margin, Math.max(0, line.search(/\S/)))))];
  const blocks = splitBlocks(inner);
  const made = element("li");
  blocks.forEach((block, index) => {
    const node = renderBlock(block, depth + 1);
    // A list that is not spaced out has plain text in its items.
    if (index === 0 && node.tagName === "P") made.append(...node.childNodes);
    else made.append(node);
  });
  return made;
}

function table(lines) {
  const [head, , ...rows] = lines;
  const row = (line, tag) =>
    element("tr", "", ...cells(line).map((cell) => withInline(element(tag), cell)));
  const inner = element(
    "table",
    "",
    element("thead", "", row(head, "th")),
    element("tbody", "", ...rows.map((line) => row(line, "td"))),
  );
  const frame = element("div", "wide", inner);
  frame.tabIndex = 0;
  return frame;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function withInline(parent, text) {
  appendInline(parent, text, 0);
  return parent;
}

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const INTERESTING = /[\\`*_~![h]/g;

/** Appends emphasis, code and links; line breaks stay. A mark without its partner stays text. */
function appendInline(parent, text, depth) {
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) parent.append(plain);
    plain = "";
  };
  const missing = new Set(); // marks known to have no partner further on: looked for once, not at each place
  while (at < text.length) {
    INTERESTING.lastIndex = at;
    const next = INTERESTING.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const found = inlineAt(text, at, depth, missing);
    if (found) {
      flush();
      parent.append(found.node);
      at = found.end;
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at];
      at++;
    }
  }
  flush();
}

function inlineAt(text, at, depth, missing) {
  switch (text[at]) {
    case "`":
      return codeSpan(text, at, missing);
    case "[":
      return link(text, at);
    case "!": // an image is not fetched, but may be opened
      return text[at + 1] === "[" ? link(text, at + 1) : null;
    case "h":
      return bareLink(text, at);
    default:
      return depth < MAX_DEPTH ? emphasis(text, at, depth, missing) : null;
  }
}

function codeSpan(text, at, missing) {
  const mark = /^`+/.exec(text.slice(at, at + 64))[0];
  if (missing.has(mark)) return null;
  const end = text.indexOf(mark, at + mark.length);
  if (end < 0) {
    missing.add(mark);
    return null;
  }
  const inner = text.slice(at + mark.length, end);
  const code = /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner;
  return { node: element("code", "", code), end: end + mark.length };
}

function emphasis(text, at, depth, missing) {
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, at) || missing.has(mark)) continue;
    if (/\s|^$/.test(text[at + mark.length] ?? "")) continue;
    if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) continue; // snake_case
    const end = closingMark(text, at + mark.length, mark);
    if (end < 0) {
      missing.add(mark);
      continue;
    }
    const node = element(tag);
    appendInline(node, text.slice(at + mark.length, end), depth + 1);
    return { node, end: end + mark.length };
  }
  return null;
}

function closingMark(text, from, mark) {
  let end = text.indexOf(mark, from);
  while (end >= 0) {
    const isDouble = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    const isInWord = mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "");
    if (end > from && !/\s/.test(text[end - 1]) && !isDouble && !isInWord) return end;
    end = text.indexOf(mark, end + (isDouble ? 2 : 1));
  }
  return -1;
}

const LINK = /\[([^\][\n]{1,500})\]\(<?(https?:\/\/[^\s<>()]{1,2000}(?:\([^\s<>()]{0,200}\)[^\s<>()]{0,500})?)>?(?:\s+"[^"\n]{0,300}")?\)/y;
const BARE = /https?:\/\/[^\s<>"'`\])]{1,2000}/y;

function link(text, at) {
  LINK.lastIndex = at;
  const found = LINK.exec(text);
  if (!found) return null;
  const node = anchor(found[2]);
  if (!node) return null;
  node.append(found[1]);
  return { node, end: at + found[0].length };
}

function bareLink(text, at) {
  if (/\w/.test(text[at - 1] ?? "")) return null;
  BARE.lastIndex = at;
  const found = BARE.exec(text)?.[0].replace(/[.,;:!?*_]+$/, "");
  const node = found && anchor(found);
  if (!node) return null;
  node.append(found);
  return { node, end: at + found.length };
}

/** A link, or null where the address is none of http(s). */
function anchor(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const node = element("a");
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}
