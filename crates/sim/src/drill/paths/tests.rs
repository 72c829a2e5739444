use super::super::fake::{Fake, Flaws};
use super::*;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("linerate-drill-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        Self(dir)
    }
    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

const SYN: &str = "0 < S 0:0(0) win 1\n+0 > S. 0:0(0) ack 1 <...>\n";

fn options(dir: &Dir, jobs: usize) -> RunOptions {
    RunOptions { paths: vec![dir.0.clone()], jobs, ..RunOptions::default() }
}

fn fake(cfg: &VariantConfig) -> Box<dyn Backend> {
    Box::new(Fake::new(Flaws::default(), cfg.name == "ipv4-mapped-ipv6"))
}

#[test]
fn a_directory_in_three_variants_with_a_report() {
    let dir = Dir::new("dir");
    dir.file("a_pass.pkt", SYN);
    dir.file("b_only4.pkt", &format!("--ip_version=ipv4\n{SYN}"));
    dir.file("c_fail.pkt", &format!("{SYN}+0 close(3) = -1 EBADF (\"<&>\")\n"));
    dir.file("sub/d_code.pkt", "0 %{ x }%\n");
    dir.file("sub/e_syntax.pkt", "0 nonsense\n");
    dir.file("sub/f_option.pkt", "--nonsense=1\n0 `ls`\n");
    dir.file("readme.md", "no script");
    let s = run_paths(&options(&dir, 3), fake).unwrap();
    let names: Vec<_> = s.cases.iter().map(|c| (c.path.file_name().unwrap().to_str().unwrap(), c.variant)).collect();
    assert_eq!(
        &names[..4],
        &[("a_pass.pkt", "ipv4"), ("a_pass.pkt", "ipv4-mapped-ipv6"), ("a_pass.pkt", "ipv6"), ("b_only4.pkt", "ipv4")]
    );
    assert_eq!((s.cases.len(), s.passed(), s.failed(), s.unsupported()), (16, 4, 9, 3));
    let text = |name: &str| {
        let case = s.cases.iter().find(|c| c.path.ends_with(name)).unwrap();
        format!("{:?}", case.report.verdict)
    };
    assert!(text("e_syntax.pkt").contains("e_syntax.pkt:2:1: syntax error"), "{}", text("e_syntax.pkt"));
    assert!(text("f_option.pkt").contains("f_option.pkt:1:1: unknown option --nonsense"));
    let xml = s.junit();
    assert!(xml.contains("tests=\"16\" failures=\"9\" skipped=\"3\""));
    assert!(xml.contains("<skipped message=") && xml.contains("&#10;") | !xml.contains("\n<failure"));
    assert_eq!(xml.matches("<testcase").count(), xml.matches("</testcase>").count());
}

#[test]
fn command_line_wins_and_picks_a_variant() {
    let dir = Dir::new("opts");
    dir.file("a.pkt", &format!("--mtu=1400\n{SYN}"));
    let mut o = options(&dir, 1);
    o.options.push(("mtu".into(), Some("1300".into())));
    o.variant = Some("ipv6".into());
    let seen = Mutex::new(Vec::new());
    let s = run_paths(&o, |cfg| {
        seen.lock().unwrap().push((cfg.name, cfg.mtu));
        fake(cfg)
    });
    assert_eq!(s.unwrap().passed(), 1);
    assert_eq!(seen.into_inner().unwrap(), vec![("ipv6", 1300)]);
    o.options.push(("ip_version".into(), Some("ipv4".into())));
    assert_eq!(run_paths(&o, fake).unwrap().cases.len(), 0);
    o.paths = vec!["/no/such/path".into()];
    assert!(run_paths(&o, fake).is_err());
}

#[test]
fn a_panic_fails_one_case() {
    let dir = Dir::new("panic");
    dir.file("a.pkt", SYN);
    let s = run_paths(&options(&dir, 2), |cfg| {
        let flaws = Flaws { panics: cfg.name == "ipv6", ..Flaws::default() };
        Box::new(Fake::new(flaws, false))
    });
    let s = s.unwrap();
    assert_eq!((s.passed(), s.failed()), (2, 1));
    assert!(format!("{:?}", s.cases[2].report.verdict).contains("told to panic"));
}

/// The repository's own scripts.
fn own_scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/packetdrill")
}

#[test]
fn own_scripts_parse_in_every_variant() {
    let opts = RunOptions {
        paths: vec![own_scripts()],
        jobs: 2,
        options: vec![("dry_run".into(), None)],
        ..RunOptions::default()
    };
    let s = run_paths(&opts, fake).unwrap();
    let bad: Vec<_> = s.cases.iter().filter(|c| c.report.verdict != Verdict::Passed).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let scripts: std::collections::BTreeSet<_> = s.cases.iter().map(|c| c.path.clone()).collect();
    assert!(scripts.len() >= 100, "{} scripts", scripts.len());
    for path in scripts {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("// "), "{} begins with what it shows", path.display());
    }
}

/// Every script states what Linux does: run it on Linux. Real time, root and a TUN device, so only when asked for.
#[test]
fn own_scripts_describe_linux() {
    let wanted = std::env::var("LINERATE_DRILL_LINUX").is_ok_and(|v| v == "1")
        || std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
    if !wanted {
        println!("skipped: set LINERATE_DRILL_LINUX=1 (needs root, unshare, python3 and /dev/net/tun)");
        return;
    }
    let child = own_scripts().join("linux_child.py").display().to_string();
    let command: Vec<String> =
        ["unshare", "-n", "python3", "-u"].iter().map(|s| (*s).to_owned()).chain([child]).collect();
    let mut opts = RunOptions { paths: vec![own_scripts()], jobs: 2, ..RunOptions::default() };
    // A busy host and a kernel of 250 Hz are late by more than a simulator.
    opts.options.push(("tolerance_usecs".into(), Some("14000".into())));
    opts.options.push(("tolerance_percent".into(), Some("22".into())));
    let start = |cfg: &VariantConfig| -> Box<dyn Backend> {
        Box::new(super::super::process::ProcessBackend::start(&command, cfg).expect("the child opens its device"))
    };
    let mut bad: Vec<String> = Vec::new();
    for case in run_paths(&opts, start).unwrap().cases {
        // Late is not wrong: a case counts if it fails twice.
        if case.report.verdict == Verdict::Passed {
            continue;
        }
        let again = RunOptions { paths: vec![case.path], variant: Some(case.variant.into()), jobs: 1, ..opts.clone() };
        let second = run_paths(&again, start).unwrap().cases;
        bad.extend(
            second.iter().filter(|c| c.report.verdict != Verdict::Passed).map(|c| format!("{:?}", c.report.verdict)),
        );
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
