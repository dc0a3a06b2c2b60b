// Light, dark, or as the system: set before the page is drawn, so that it does not flash. Kept in this browser.
const theme = { chosen: null };
try {
  theme.chosen = localStorage.getItem("theme");
} catch { /* this browser keeps nothing */ }
if (theme.chosen) document.documentElement.dataset.theme = theme.chosen;
