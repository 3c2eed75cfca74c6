//! Tests bars, markers and legends of every flow group and probe.

use super::*;

#[test]
fn phases_have_a_bar_for_each_group() {
    let svg = |filters: &[(&str, &str)]| {
        let figure = draw(Kind::Phases, filters).remove(0);
        let bars = |of: &str| figure.csv.lines().filter(|line| line.contains(of)).count();
        // Throughput and sRTT at two points.
        let under_test = filters.iter().all(|(column, _)| *column != "group");
        let wanted = [if under_test { 4 } else { 0 }, 4, 0];
        assert_eq!(
            [",under_test,compete,", ",cross,compete,", ",cross,alone,"].map(bars),
            wanted,
            "{}",
            figure.csv
        );
        figure.svg
    };
    let all = svg(&[]);
    for text in ["alone: under_test (bbr)", "compete: under_test (bbr)", "compete: cross (cubic)"] {
        assert!(all.contains(&format!(">{text}<")), "{text}: {all}");
    }
    assert!(all.contains(">Throughput (Mbit/s)<") && !all.contains(">alone: cross"), "{all}");
    let one_phase = svg(&[("phase", "compete")]);
    for text in ["phase compete:", "under_test (bbr)", "cross (cubic)"] {
        assert!(one_phase.contains(&format!(">{text}<")), "{text}: {one_phase}");
    }
    let one_group = svg(&[("group", "cross")]);
    assert!(one_group.contains(">Throughput of cross") && one_group.contains(">compete<"));
    assert!(!one_group.contains("under_test"), "{one_group}");
}

#[test]
fn phases_have_bars_of_probes() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let draw = |metrics: &[&str], filters: &[(&str, &str)]| {
        let metrics = metrics.iter().map(|name| (*name).to_owned()).collect();
        figure::draw(&run, &Request { metrics, ..request(Kind::Phases, filters) })
    };
    let one = draw(&["rtt"], &[("scheme", "cubic")]).unwrap().remove(0);
    let of = [("metric", "RTT (ms)"), ("probe", "rtt"), ("phase", "alone")];
    let ms = number(&one, &of, "mean");
    assert!((10.0..10.01).contains(&ms), "{ms}");
    assert!(one.svg.contains(">probe rtt<") && !one.svg.contains("cross"), "{}", one.svg);
    // Beside groups, and at several points.
    let both = draw(&["throughput_sum", "rtt"], &[("phase", "compete")]).unwrap().remove(0);
    for text in ["probe rtt", "cross (cubic)"] {
        assert!(both.svg.contains(&format!(">{text}<")), "{text}: {}", both.svg);
    }
    let error = draw(&["rtt"], &[("group", "cross")]).unwrap_err().to_string();
    assert!(error.contains("a metric of probes"), "{error}");
}

#[test]
fn legends_name_the_congestion_control_of_each_flow() {
    let filters = [("scheme", "cubic"), ("phase", "compete")];
    for (kind, names) in [
        (Kind::Series, ["under_test/0 (bbr)", "cross/0 (cubic)"]),
        (Kind::Ecdf, ["under_test/1 (bbr)", "cross/0 (cubic)"]),
        (Kind::Strips, ["under_test (bbr)", "cross (cubic)"]),
    ] {
        let svg = draw(kind, &filters).remove(0).svg;
        for name in names {
            assert!(svg.contains(&format!(">{name}</text>")), "{}: {name}: {svg}", kind.name());
        }
    }
}

#[test]
fn full_queue_is_no_ideal() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    put_plan(&run, TWO_PATHS);
    let figure = |phase| {
        let filters = [("scheme", "cubic"), ("phase", phase), ("group", "under_test")];
        figure::draw(&run, &request(Kind::Phases, &filters)).unwrap().remove(0)
    };
    let rtt = [("metric", "Mean sRTT (ms)")];
    let alone = figure("alone");
    assert_eq!(number(&alone, &rtt, "ideal"), 1.0);
    assert_eq!(cells(&alone, &rtt, "full_queue"), [""]);
    assert!(alone.svg.contains(">ideal<") && !alone.svg.contains(">full queue<"));
    let compete = figure("compete");
    assert_eq!(cells(&compete, &rtt, "ideal"), [""]);
    // 100 kB at 1 Gbit/s, plus the delay.
    assert!((number(&compete, &rtt, "full_queue") - 1.8).abs() < 1e-9, "{}", compete.csv);
    assert!(compete.svg.contains(">ideal<") && compete.svg.contains(">full queue<"));
    let bfifo = "{ kind = \"bfifo\", limit = \"100kB\" }";
    // A packet of 1500 bytes takes 1538 on the line. Limits count 1514.
    let framed = TWO_PATHS.replace("rate = \"1gbit\"", "rate = \"10mbit\"\noverhead = \"38B\"");
    for (queue, wanted_ms) in
        [(bfifo, 80.0 * 1538.0 / 1514.0), ("{ kind = \"pfifo\", limit = \"100p\" }", 123.04)]
    {
        put_plan(&run, &framed.replace(bfifo, queue));
        let full_queue_ms = number(&figure("compete"), &rtt, "full_queue");
        assert!((full_queue_ms - 1.0 - wanted_ms).abs() < 1e-6, "{queue}: {full_queue_ms}");
    }
    put_plan(&run, &TWO_PATHS.replace(bfifo, "{ kind = \"fq_codel\" }"));
    assert!(!figure("compete").svg.contains(">full queue<"), "it has no full queue to speak of");
}

#[test]
fn references_follow_changes_and_policers() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    let figure = |kind, plan: &str, phase: &str| {
        put_plan(&run, plan);
        let filters = [("scheme", "cubic"), ("phase", phase)];
        figure::draw(&run, &request(kind, &filters)).unwrap().remove(0)
    };
    let bars = |plan: &str, phase: &str| figure(Kind::Phases, plan, phase);
    let near = |found: f64, wanted: f64| {
        assert!((found - wanted).abs() < 1e-6 * wanted, "{found} is not {wanted}");
    };
    let throughput = [("metric", "Throughput (Mbit/s)"), ("group", "under_test")];
    let rtt = [("metric", "Mean sRTT (ms)"), ("group", "under_test")];
    let with_delay = TWO_PATHS.replace("\"1gbit\"\n", "\"1gbit\"\ndelay = \"1ms\"\n");
    let changed = |at: &str, set: &str| {
        format!("{with_delay}[[changes]]\nat = \"{at}\"\nset = {{ {set} }}\n")
    };
    // Between both phases.
    let set = r#""links.bottleneck.rate" = "500mbit", "links.bottleneck.delay" = "3ms""#;
    let before = bars(&changed("5s", set), "alone");
    near(number(&before, &throughput, "ideal"), 1000.0 * PAYLOAD);
    near(number(&before, &rtt, "ideal"), 1.0);
    let after = bars(&changed("5s", set), "compete");
    near(number(&after, &throughput, "ideal"), 500.0 * PAYLOAD * 2.0 / 3.0);
    // 100 kB at 500 Mbit/s, plus the delay.
    near(number(&after, &rtt, "full_queue"), 1.6 + 3.0);
    let strips = figure(Kind::Strips, &changed("5s", set), "compete");
    let cross = [("flow_id", "cross/0"), ("trial", "1")];
    near(number(&strips, &cross, "fair_mbit_s"), 500.0 * PAYLOAD / 3.0);
    // In the middle of a phase: the rate is the mean, but there is no base RTT.
    let during = bars(&changed("7s", set), "compete");
    near(number(&during, &throughput, "ideal"), 750.0 * PAYLOAD * 2.0 / 3.0);
    assert_eq!(cells(&during, &rtt, "full_queue"), [""]);
    let limit = changed("7s", r#""links.bottleneck.queue.limit" = "50kB""#);
    assert_eq!(cells(&bars(&limit, "compete"), &rtt, "full_queue"), [""]);
    // A policer in front of the queue, which does not fill.
    let policer = "\"1gbit\"\npolicer = { rate = \"200mbit\", burst = \"100kB\" }\n";
    let policed = bars(&TWO_PATHS.replace("\"1gbit\"\n", policer), "compete");
    near(number(&policed, &throughput, "ideal"), 200.0 * PAYLOAD * 2.0 / 3.0);
    assert_eq!(cells(&policed, &rtt, "full_queue"), [""]);
    // It limits the line only before the change to 500 Mbit/s.
    let policer = policer.replace("200mbit", "800mbit");
    let policed = changed("7s", set).replace("\"1gbit\"\n", &policer);
    let half = bars(&policed, "compete");
    near(number(&half, &throughput, "ideal"), 650.0 * PAYLOAD * 2.0 / 3.0);
    let rate_only = changed("7s", r#""links.bottleneck.rate" = "500mbit""#);
    let half = bars(&rate_only.replace("\"1gbit\"\n", &policer), "compete");
    assert_eq!(cells(&half, &rtt, "full_queue"), [""]);
}

#[test]
fn plane_draws_every_group_beside_its_fair_share() {
    let root = tempfile::tempdir().unwrap();
    let run = made_up(root.path());
    put_plan(&run, &TWO_PATHS.replace("10ms", "1ms"));
    let figure = |filters: &[(&str, &str)]| {
        let request = Request { width_mm: Some(175.0), ..request(Kind::Plane, filters) };
        figure::draw(&run, &request).unwrap().remove(0)
    };
    let compete = figure(&[("phase", "compete")]);
    for flow in ["under_test/0", "under_test/1", "cross/0"] {
        let rows = compete.csv.lines().filter(|line| line.contains(&format!(",{flow},"))).count();
        assert_eq!(rows, 2, "{flow} at two points: {}", compete.csv);
    }
    for text in ["under_test (bbr)", "cross (cubic)", "optimum (fair share)", "Throughput (Mbit/s)"]
    {
        assert!(compete.svg.contains(&format!(">{text}<")), "{text}: {}", compete.svg);
    }
    // 319 Mbit/s for each of three flows, rather than 956.
    assert!(compete.svg.contains(">300</text>") && !compete.svg.contains(">900</text>"));
    assert!(!compete.svg.contains(">1000</text>"), "{}", compete.svg);
    let one = figure(&[("phase", "compete"), ("scheme", "cubic")]);
    for text in ["under_test/0 (bbr)", "cross/0 (cubic)"] {
        assert!(one.svg.contains(&format!(">{text}<")), "{text}: {}", one.svg);
    }
    let of_group = figure(&[("phase", "compete"), ("group", "cross")]).svg;
    assert!(of_group.contains(">Throughput of cross (Mbit/s)<"), "{of_group}");
}
