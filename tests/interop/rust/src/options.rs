//! The command line: `--name value`, each with a default.

use std::collections::HashMap;

pub struct Options(HashMap<String, String>);

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Options {
        let mut values = HashMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").unwrap_or_else(|| panic!("expected --name, got {word}"));
            let value = words.next().unwrap_or_else(|| panic!("{word} has no value"));
            values.insert(name.to_string(), value);
        }
        Options(values)
    }

    pub fn text(&self, name: &str, fallback: &str) -> String {
        self.0.get(name).cloned().unwrap_or_else(|| fallback.to_string())
    }

    pub fn number(&self, name: &str, fallback: usize) -> usize {
        self.0.get(name).map_or(fallback, |value| value.parse().expect("a number"))
    }

    pub fn yes(&self, name: &str) -> bool {
        self.text(name, "no") == "yes"
    }
}
