use std::format;
use std::vec::Vec;

use proptest::prelude::*;

use super::options::kind;
use super::*;

fn opts(f: impl FnOnce(&mut TcpOptions)) -> TcpOptions {
    let mut o = TcpOptions::NONE;
    f(&mut o);
    o
}

fn bytes_of(o: &TcpOptions) -> Vec<u8> {
    let mut b = std::vec![0xee; o.emit_len()];
    o.emit(&mut b);
    b
}

const TS: Option<Timestamps> = Some(Timestamps { val: 1, ecr: 0 });
const TS_BYTES: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 0];

#[test]
fn flags_print_as_scripts_write_them() {
    use TcpFlags as F;
    let p = |f: F| format!("{f:?}");
    assert_eq!(p(F::SYN | F::ECE | F::CWR | F::ACK), "SEW.");
    assert_eq!(p(F::PSH | F::ACK), "P.");
    assert_eq!(p(F::SYN | F::ECE | F::CWR | F::AE), "SEWA");
    assert_eq!(p(F::NONE), "-");
    assert_eq!(p((F::FIN | F::ACK) - F::FIN), ".");
    assert_eq!(!F::ALL, F::NONE);
    assert!((F::SYN | F::ACK).contains(F::SYN) && !F::SYN.contains(F::SYN | F::ACK));
}

#[test]
fn syn_options_have_linux_layout() {
    let full = opts(|o| {
        (o.mss, o.wscale, o.sack_permitted, o.ts) = (Some(1460), Some(8), true, TS);
    });
    let mut want = Vec::from([2, 4, 5, 0xb4, 4, 2, 8, 10]);
    want.extend(TS_BYTES);
    want.extend([1, 3, 3, 8]);
    assert_eq!(bytes_of(&full), want);
    let no_ts = TcpOptions { ts: None, ..full };
    assert_eq!(bytes_of(&no_ts), [2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 8]);
    let no_sack = TcpOptions { sack_permitted: false, ..full };
    let mut want = Vec::from([2, 4, 5, 0xb4, 1, 1, 8, 10]);
    want.extend(TS_BYTES);
    want.extend([1, 3, 3, 8]);
    assert_eq!(bytes_of(&no_sack), want);
}

#[test]
fn established_options_have_linux_layout_and_limits() {
    let blocks: Vec<_> = (0..4).map(|i| (Seq(i * 10), Seq(i * 10 + 5))).collect();
    let sack = SackBlocks::from_slice(&blocks);
    let with_ts = opts(|o| (o.ts, o.sack) = (TS, sack));
    let b = bytes_of(&with_ts);
    assert_eq!((b.len(), &b[12..16]), (40, &[1, 1, 5, 26][..]));
    assert_eq!(TcpOptions::parse(&b, false).sack.as_slice(), &blocks[..3]);
    let alone = opts(|o| o.sack = sack);
    assert_eq!((alone.emit_len(), TcpOptions::parse(&bytes_of(&alone), false)), (36, alone));
    let ts = opts(|o| o.ts = TS);
    assert_eq!(bytes_of(&ts)[..4], [1, 1, 8, 10]);
    let mut four = sack;
    assert!(!four.push(Seq(1), Seq(2)) && four == sack);
}

#[test]
fn options_are_read_leniently() {
    // A length below 2 or beyond the end stops; what came before counts.
    let o = TcpOptions::parse(&[2, 4, 5, 0xb4, 99, 0, 3, 3, 7], true);
    assert_eq!((o.mss, o.wscale), (Some(1460), None));
    assert_eq!(TcpOptions::parse(&[2, 4, 5, 0xb4, 3, 30, 7], true).mss, Some(1460));
    // Unknown kinds are skipped, end of list ends, the last copy wins, an MSS of 0 is none.
    assert_eq!(TcpOptions::parse(&[99, 4, 0, 0, 3, 3, 7, 0, 3, 3, 9], true).wscale, Some(7));
    assert_eq!(TcpOptions::parse(&[3, 3, 7, 3, 3, 9], true).wscale, Some(9));
    assert_eq!(TcpOptions::parse(&[2, 4, 0, 0], true).mss, None);
    // Handshake options count on a SYN only; a known kind of a wrong length is unknown.
    assert_eq!(TcpOptions::parse(&[2, 4, 5, 0xb4, 4, 2, 3, 3, 1], false), TcpOptions::NONE);
    assert_eq!(TcpOptions::parse(&[4, 3, 0, 5, 9, 1, 2, 3, 4, 5, 6, 7], true), TcpOptions::NONE);
    // Fast Open: a request, a cookie, an odd one.
    assert_eq!(TcpOptions::parse(&[34, 2], true).fastopen, FastOpenCookie::new(false, &[]));
    let exp = TcpOptions::parse(&[254, 8, 0xf9, 0x89, 1, 2, 3, 4], true).fastopen;
    assert_eq!(exp, FastOpenCookie::new(true, &[1, 2, 3, 4]));
    assert_eq!(TcpOptions::parse(&[34, 7, 1, 2, 3, 4, 5], true).fastopen, None);
}

#[test]
fn header_errors() {
    let mut b = [0u8; 60];
    TcpRepr::default().emit(&mut b);
    assert_eq!(TcpRepr::parse(&b[..19]), Err(TcpParseError::Truncated));
    assert_eq!(TcpRepr::parse(&b[..20]).map(|r| r.1), Ok(20));
    b[12] = 0x40;
    assert_eq!(TcpRepr::parse(&b), Err(TcpParseError::DataOffset));
    b[12] = 0xf0;
    assert_eq!(TcpRepr::parse(&b[..59]), Err(TcpParseError::Truncated));
    assert_eq!(TcpRepr::parse(&b).map(|r| r.1), Ok(60));
    // Reserved bits are not flags.
    b[12] = 0x5e;
    assert_eq!(TcpRepr::parse(&b).map(|r| r.0.flags), Ok(TcpFlags::NONE));
    assert_eq!(TcpView::new_checked(&b).map(|v| v.reserved()), Ok(7));
}

#[test]
fn verbatim_options_are_padded_with_end_of_list() {
    let r = TcpRepr::default();
    let mut b = [0xee; 64];
    assert_eq!(r.emit_with_options(&[TcpOption::Nop, TcpOption::Wscale(3)], &mut b), Some(24));
    assert_eq!(r.emit_with_options(&[TcpOption::Nop], &mut b), Some(24));
    assert_eq!(b[20..24], [kind::NOP, 0, 0, 0]);
    let long = [TcpOption::Md5([0; 16]); 3];
    assert_eq!(r.emit_with_options(&long, &mut b), None);
    assert_eq!(r.segment_len(5), 5);
    let syn_fin = TcpRepr { flags: TcpFlags::SYN | TcpFlags::FIN, seq: Seq(u32::MAX), ..r };
    assert_eq!(syn_fin.end_seq(5), Seq(6));
}

fn arb_blocks(max: usize) -> impl Strategy<Value = SackBlocks> {
    proptest::collection::vec(any::<(u32, u32)>(), 0..=max)
        .prop_map(|v| SackBlocks::from_slice(&v.iter().map(|&(l, r)| (Seq(l), Seq(r))).collect::<Vec<_>>()))
}

fn arb_bytes() -> impl Strategy<Value = OptionBytes> {
    proptest::collection::vec(any::<u8>(), 0..=38).prop_map(|v| OptionBytes::new(&v).unwrap())
}

fn arb_option() -> impl Strategy<Value = TcpOption> {
    prop_oneof![
        Just(TcpOption::Eol),
        Just(TcpOption::Nop),
        any::<u16>().prop_map(TcpOption::Mss),
        any::<u8>().prop_map(TcpOption::Wscale),
        Just(TcpOption::SackPermitted),
        arb_blocks(4).prop_filter("not empty", |s| !s.is_empty()).prop_map(TcpOption::Sack),
        any::<(u32, u32)>().prop_map(|(val, ecr)| TcpOption::Timestamps(Timestamps { val, ecr })),
        arb_bytes().prop_map(|cookie| TcpOption::FastOpen { exp: false, cookie }),
        any::<[u8; 16]>().prop_map(TcpOption::Md5),
        (35u8..254, arb_bytes()).prop_map(|(kind, data)| TcpOption::Unknown { kind, data }),
    ]
}

proptest! {
    #[test]
    fn repr_round_trips(
        (src_port, dst_port, seq, ack) in any::<(u16, u16, u32, u32)>(), flags in 0u16..512, (window, urgent) in any::<(u16, u16)>(),
        mss in proptest::option::of(1u16..), wscale in any::<Option<u8>>(), sack_permitted in any::<bool>(),
        ts in any::<Option<(u32, u32)>>(), sack in arb_blocks(3), cookie in proptest::option::of((any::<bool>(), 0usize..7)),
    ) {
        let flags = TcpFlags(flags);
        let mut opts = TcpOptions { ts: ts.map(|(val, ecr)| Timestamps { val, ecr }), ..TcpOptions::NONE };
        if flags.contains(TcpFlags::SYN) {
            (opts.mss, opts.wscale, opts.sack_permitted) = (mss, wscale, sack_permitted);
            opts.fastopen = cookie.and_then(|(exp, n)| FastOpenCookie::new(exp && n < 6, &[7; 16][..n * 2 + if n > 0 { 4 } else { 0 }]));
        } else {
            opts.sack = sack;
        }
        let r = TcpRepr { src_port, dst_port, seq: Seq(seq), ack: Seq(ack), flags, window, urgent, opts };
        let len = r.header_len();
        prop_assert!(len.is_multiple_of(4) && len <= HEADER_LEN_MAX);
        let mut b = std::vec![0xee; len];
        r.emit(&mut b);
        prop_assert_eq!(TcpRepr::parse(&b), Ok((r, len)));
        let v = TcpView::new_checked(&b).unwrap();
        prop_assert_eq!((v.seq(), v.ack(), v.flags(), v.window(), v.checksum(), v.header_len()), (r.seq, r.ack, flags, window, 0, len));
    }

    #[test]
    fn lists_round_trip_verbatim(list in proptest::collection::vec(arb_option(), 0..8)) {
        let mut b = [0xee; 400];
        let n = emit_list(&list, &mut b).unwrap();
        prop_assert_eq!(TcpOption::parse_list(&b[..n]).collect::<Vec<_>>(), list.clone());
        prop_assert!(n == 0 || emit_list(&list, &mut b[..n - 1]).is_none());
    }

    #[test]
    fn any_bytes_parse_or_fail_without_panic(b in proptest::collection::vec(any::<u8>(), 0..80), doff in 0u8..16) {
        let mut b = b;
        if let Some(x) = b.get_mut(12) { *x = doff << 4 | (*x & 0xf); }
        if let Ok((r, len)) = TcpRepr::parse(&b) {
            prop_assert!(len <= b.len());
            let mut out = [0; HEADER_LEN_MAX];
            r.emit(&mut out);
            // What was understood survives another round.
            let again = TcpRepr::parse(&out).unwrap().0;
            prop_assert_eq!((again.seq, again.opts.ts, again.opts.mss), (r.seq, r.opts.ts, r.opts.mss));
        }
        if let Ok(v) = TcpView::new_checked(&b) {
            prop_assert!(v.options().len() <= OPTIONS_LEN_MAX && v.payload().len() <= b.len());
        }
        let it = TcpOption::parse_list(&b);
        prop_assert!(it.count() <= b.len());
    }
}
