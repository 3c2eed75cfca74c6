//! Takes screenshots of all pages for a reader to look at: `make screenshots`.

use super::accessibility::list_few_metrics;
use super::index::open_index;
use super::live::{LivePage, update};
use super::*;
use crate::lost::sweep;

/// Names the directory of the screenshots.
const DIRECTORY: &str = "CCBENCH_SCREENSHOTS";
const WIDTHS: [u32; 3] = [500, 900, 1280];
/// Maximum height in pixels. Chromium draws no larger ones.
const MAX_HEIGHT: u64 = 16_000;

/// Saves the whole page at each width in both themes.
fn save(browser: &Browser, directory: &Path, page: &str) {
    for _ in ["light", "dark"] {
        let theme = browser.eval("return document.documentElement.dataset.theme");
        for width in WIDTHS {
            browser.resize(width, 1000);
            // The page follows the window's width after a moment.
            wait_for(browser, "document.documentElement.scrollWidth <= innerWidth");
            let height = browser
                .eval("return document.documentElement.scrollHeight + outerHeight - innerHeight");
            let height = height.as_u64().unwrap().min(MAX_HEIGHT);
            browser.resize(width, u32::try_from(height).unwrap());
            wait_for(browser, &format!("outerHeight >= {height}"));
            let name = format!("{page}-{width}-{}.png", theme.as_str().unwrap());
            let image = browser.screenshot();
            assert!(image.starts_with(b"\x89PNG\r\n"), "{name}");
            std::fs::write(directory.join(name), image).unwrap();
        }
        browser.click("#theme");
    }
}

#[test]
#[ignore = "a reader looks at the result: make screenshots"]
fn screenshots() {
    let directory = std::env::var_os(DIRECTORY).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| panic!("name a directory in {DIRECTORY}"));
    std::fs::create_dir_all(&directory).unwrap();
    let save = |browser: &Browser, page: &str| save(browser, &directory, page);
    let (browser, _root) = open_report_after(add_claims).unwrap();
    list_few_metrics(&browser);
    browser.click("#add-point");
    save(&browser, "report");
    let (browser, _root) = open_report_of(sweep).unwrap();
    list_few_metrics(&browser);
    save(&browser, "report-of-sweep");
    let (browser, _root) = open_index().unwrap();
    save(&browser, "index");
    let live = LivePage::open().unwrap();
    live.send(&(0..150).map(|nth| update(nth, 12)).collect::<Vec<_>>());
    live.frame();
    save(&live.browser, "live");
    let saved = std::fs::read_dir(&directory).unwrap().count();
    assert!(saved >= 4 * 2 * WIDTHS.len(), "{saved} screenshots in {}", directory.display());
}
