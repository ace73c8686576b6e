// Sets the colours before the first paint: this script is not a module, and blocks.
try {
    const theme = localStorage.getItem("quern.theme");
    if (theme === "light" || theme === "dark")
        document.documentElement.dataset.theme = theme;
} catch { /* storage may be forbidden: use the system's colours */ }
