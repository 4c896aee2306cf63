//! The seeds, replayed without a fuzzer.

use std::fs;
use std::path::Path;

#[test]
fn every_target_has_seeds_and_survives_them() {
    for (name, target) in super::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("seeds")
            .join(name);
        let seeds: Vec<_> = fs::read_dir(folder).expect("seeds").flatten().collect();
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            // Shown when it fails.
            println!("{name}: {}", seed.path().display());
            target(&fs::read(seed.path()).expect("a readable seed"));
        }
    }
}
