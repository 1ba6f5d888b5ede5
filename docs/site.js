// What a screen reader and a keyboard need beyond what the theme gives.
function complete() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code ${i + 1}`));
  document.querySelectorAll("nav.md-nav").forEach((nav, i) => {
    const label = document.getElementById(nav.getAttribute("aria-labelledby"))?.textContent.trim();
    nav.removeAttribute("aria-labelledby");
    nav.dataset.name ||= label || nav.getAttribute("aria-label");
    nav.setAttribute("aria-label", `${nav.dataset.name} (menu ${i + 1})`); // names may repeat
  });
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
}
document.addEventListener("DOMContentLoaded", () => {
  complete();
  new MutationObserver(complete).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
});
