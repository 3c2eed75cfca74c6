//! Compares output with the files in `results`.

use std::path::Path;

/// Rounds the numbers of a CSV to nine digits, because the last ones depend on the order of a sum.
pub fn rounded(csv: &str) -> String {
    let round = |field: &str| match field.parse::<f64>() {
        Ok(number) if field.contains('.') => format!("{number:.8e}"),
        _ => field.to_owned(),
    };
    csv.lines()
        .map(|line| line.split(',').map(round).collect::<Vec<_>>().join(",") + "\n")
        .collect()
}

/// Compares a text with its golden file.
pub fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/results").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs (UPDATE_GOLDEN=1 rewrites it); now:\n{actual}");
}
