// Makes elements. Text only ever becomes text nodes, so nothing that a model writes can become markup.

/**
 * An element with a class and children; strings become text.
 *
 * @param {string} name Tag.
 * @param {string} className Its classes; "" for none.
 * @param {...(Node|string)} children
 */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** A button that does `action`. */
export function button(text, className, action) {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}
