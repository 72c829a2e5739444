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
