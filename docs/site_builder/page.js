// A button that copies each block of code, and a link beside each heading. What a program prints has no button.
"use strict";

function copyButton(block) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.querySelector("pre").innerText);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}

function headingLink(heading) {
  const link = document.createElement("a");
  link.href = "#" + heading.id;
  link.className = "anchor";
  link.textContent = "#";
  link.setAttribute("aria-label", "Link to this section: " + heading.textContent);
  return link;
}

for (const block of document.querySelectorAll(".code")) {
  const code = block.querySelector("code");
  if (code.classList.contains("language-text")) block.classList.add("output");
  else block.append(copyButton(block));
}
for (const heading of document.querySelectorAll("main h2[id], main h3[id]")) heading.append(headingLink(heading));
