// The search: every word must occur; a hit at the start of a word of a heading counts more than one in the text.
"use strict";

const input = document.getElementById("find");
const list = document.getElementById("found");
const menu = document.getElementById("menu");

function begins(text, word) {
  const at = text.toLowerCase().indexOf(word);
  return at === 0 || (at > 0 && !/[a-z0-9]/i.test(text[at - 1]));
}

function score(words, [, , title, heading, text]) {
  let sum = 0;
  for (const word of words) {
    const inHeading = begins(heading, word);
    const inTitle = begins(title, word);
    const inText = text.toLowerCase().includes(word);
    if (!inHeading && !inTitle && !inText) return 0;
    sum += (inHeading ? 8 : 0) + (inTitle ? 3 : 0) + (inText ? 1 : 0);
  }
  return sum;
}

function excerpt(words, text) {
  const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 30);
  return (at ? "…" : "") + text.slice(at, at + 110) + "…";
}

function show() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = words.length
    ? SECTIONS.map((section) => [score(words, section), section]).filter(([points]) => points > 0)
    : [];
  hits.sort((one, other) => other[0] - one[0]);
  list.replaceChildren(...hits.slice(0, 12).map(([, section]) => entry(words, section)));
  menu.hidden = words.length > 0;
  if (words.length && !hits.length) list.textContent = "Nothing found.";
}

function entry(words, [page, anchor, title, heading, text]) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = page + ".html" + (anchor ? "#" + anchor : "");
  link.textContent = heading === title ? title : title + " · " + heading;
  const about = document.createElement("small");
  about.textContent = excerpt(words, text);
  item.append(link, about);
  return item;
}

input.addEventListener("input", show);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Escape" && document.activeElement === input) {
    input.value = "";
    show();
    input.blur();
  }
});
if (window.matchMedia("(max-width: 60rem)").matches) menu.open = false;
