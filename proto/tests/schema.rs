//! Tests that the JSON schema of plans agrees with the reader of plans and with the manual's chapter.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::{Path, PathBuf};

use boon::{Compiler, SchemaIndex, Schemas};
use ccbench_proto::plan::check::{Severity, read};
use ccbench_proto::plan::parse::parse;
use ccbench_proto::plan::reference::{self, Section};
use ccbench_proto::plan::schema::schema;
use serde_json::{Map, Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A validator of JSON Schema with the schema of plans.
struct Judge {
    schemas: Schemas,
    plan: SchemaIndex,
}

impl Judge {
    fn new() -> Self {
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        compiler.add_resource("plan.json", schema()).unwrap();
        let plan = compiler.compile("plan.json", &mut schemas).unwrap();
        Self { schemas, plan }
    }

    fn judge(&self, plan: &Value) -> Result<(), String> {
        self.schemas.validate(plan, self.plan).map_err(|e| e.to_string())
    }

    fn judge_text(&self, text: &str) -> Result<(), String> {
        let table: toml::Table = toml::from_str(text).unwrap();
        self.judge(&serde_json::to_value(table).unwrap())
    }
}

fn plans_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            plans_under(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "toml") {
            found.push(path);
        }
    }
}

#[test]
fn every_plan_here_fits_the_schema() {
    let (judge, mut plans) = (Judge::new(), Vec::new());
    plans_under(&root().join("plans"), &mut plans);
    plans_under(&root().join("tests/plans/valid"), &mut plans);
    assert!(plans.len() > 20, "only {plans:?}");
    for plan in plans {
        let text = std::fs::read_to_string(&plan).unwrap();
        let judged = judge.judge_text(&text);
        assert!(judged.is_ok(), "{}: {}", plan.display(), judged.err().unwrap());
    }
}

#[test]
fn reference_equals_the_types() {
    let manual = std::fs::read_to_string(root().join("docs/plan-reference.md")).unwrap_or_default();
    assert!(
        manual == reference::markdown(),
        "docs/plan-reference.md is old; write it anew: ccbench plan reference --markdown > docs/plan-reference.md"
    );
}

/// The target of a reference, or the schema itself.
fn resolve<'s>(whole: &'s Value, schema: &'s Value) -> &'s Value {
    let inner = schema.pointer("/allOf/0").unwrap_or(schema);
    match inner.get("$ref").and_then(Value::as_str) {
        Some(at) => whole.pointer(&at.trim_start_matches('#').replace("%20", " ")).unwrap(),
        None => inner,
    }
}

/// The smallest value that fits.
fn least(whole: &Value, schema: &Value) -> Value {
    let resolved = resolve(whole, schema);
    let first = |key: &str| resolved.get(key).and_then(|list| list.get(0));
    if let Some(example) = first("examples").or(resolved.get("const")) {
        return example.clone();
    }
    if let Some(one) = first("oneOf").or(first("anyOf")) {
        return least(whole, one);
    }
    let minimum = schema.get("minimum").or(resolved.get("minimum")).and_then(Value::as_u64);
    match resolved["type"].as_str() {
        Some("object") => {
            let required = resolved.get("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            let of = |name: &str| least(whole, &resolved["properties"][name]);
            Value::Object(names.map(|name| (name.to_owned(), of(name))).collect())
        }
        Some("array") => {
            let length = resolved.get("minItems").and_then(Value::as_u64).unwrap_or(0);
            Value::Array((0..length).map(|_| least(whole, &resolved["items"])).collect())
        }
        Some("integer") => minimum.unwrap_or(0).into(),
        Some("number") => json!(0.5),
        Some("boolean") => true.into(),
        Some("string")
            if resolved.get("pattern").is_some_and(|p| p.to_string().contains("{64}")) =>
        {
            "0".repeat(64).into()
        }
        _ => "a".into(),
    }
}

/// A minimal plan that has this section's table, and the table's schema.
fn plan_with<'s>(whole: &'s Value, section: &Section) -> (Value, &'s Value) {
    let mut plan = least(whole, whole);
    let (mut at, mut schema) = (&mut plan, whole);
    for segment in &section.path {
        schema = match segment.as_str() {
            "NAME" => &schema["additionalProperties"],
            "0" => &schema["items"],
            key => &schema["properties"][key],
        };
        schema = resolve(whole, schema);
        // An amount or a table.
        let table =
            |one: &'s Value| Some(resolve(whole, one)).filter(|it| it.get("properties").is_some());
        let options = schema.get("anyOf").and_then(Value::as_array);
        schema = options.and_then(|all| all.iter().find_map(table)).unwrap_or(schema);
        if let Some(kind) = section.kind.as_ref().filter(|_| schema.get("oneOf").is_some()) {
            let kinds = schema["oneOf"].as_array().unwrap();
            schema = kinds.iter().find(|one| one["properties"]["kind"]["const"] == **kind).unwrap();
        }
        at = match segment.as_str() {
            "0" => {
                let list = at.as_array_mut().unwrap();
                list.push(least(whole, schema));
                list.last_mut().unwrap()
            }
            key => {
                let key = if key == "NAME" { "a" } else { key };
                let empty =
                    if schema.get("items").is_some() { json!([]) } else { least(whole, schema) };
                at.as_object_mut().unwrap().entry(key).or_insert(empty)
            }
        };
    }
    (plan, schema)
}

/// The section's table in a plan of [`plan_with`].
fn table<'p>(plan: &'p mut Value, section: &Section) -> &'p mut Map<String, Value> {
    let inner = section.path.iter().fold(plan, |at, segment| match segment.as_str() {
        "0" => at.as_array_mut().unwrap().last_mut().unwrap(),
        "NAME" => at.get_mut("a").unwrap(),
        key => at.get_mut(key).unwrap(),
    });
    inner.as_object_mut().unwrap()
}

fn text(plan: &Value) -> String {
    toml::to_string(&toml::Table::try_from(plan).unwrap()).unwrap()
}

/// Calls `call` for every key of a plan, with its section, its schema, and a function that makes a plan with a value of the key.
fn for_each_key(mut call: impl FnMut(&Section, &str, &Value, &dyn Fn(Option<Value>) -> Value)) {
    let whole = schema();
    let mut keys = 0;
    for section in reference::sections() {
        for key in &section.keys {
            let (plan, schema) = plan_with(&whole, &section);
            let with = |value: Option<Value>| {
                let mut plan = plan.clone();
                let table = table(&mut plan, &section);
                table.remove(&key.name);
                table.extend(value.map(|value| (key.name.clone(), value)));
                plan
            };
            call(&section, &key.name, &schema["properties"][&key.name], &with);
            keys += 1;
        }
    }
    assert!(keys > 150, "{keys} keys");
}

#[test]
fn schema_and_parser_accept_the_same_plans() {
    let (judge, whole) = (Judge::new(), schema());
    for_each_key(|section, key, property, with| {
        let agree = |value: Option<Value>| {
            let plan = with(value.clone());
            let (judged, read) = (judge.judge(&plan), parse(&text(&plan)));
            // The schema checks names, digests, ranges and levels; the reader leaves them to the check.
            let stricter = ["pattern", "minimum", "maximum"];
            let checked = stricter
                .iter()
                .any(|it| property.get(it).or(resolve(&whole, property).get(it)).is_some());
            assert!(
                judged.is_ok() == read.is_ok()
                    || ((checked || ["where", "a", "b"].contains(&key)) && read.is_ok())
                    // The reader resolves its keys in the plan.
                    || (key == "quick" && judged.is_ok()),
                "{}: {key} = {value:?}\nby the schema: {judged:?}\nread: {read:?}",
                section.title
            );
            judged.is_ok()
        };
        let fits = least(&whole, property);
        assert!(agree(Some(fits.clone())), "{}: {key} = {fits} does not fit", section.title);
        agree(None);
        let odd = [
            json!(7),
            json!(true),
            json!("5parsecs"),
            json!("unheard of"),
            json!(["a"]),
            json!({}),
            json!({"a": {}}),
        ];
        let refused = odd.into_iter().filter(|value| !agree(Some(value.clone()))).count();
        assert!(refused > 0, "{}: {key} takes everything", section.title);
    });
}

#[test]
fn digests_are_in_lower_case() {
    let (judge, mut digests) = (Judge::new(), 0);
    for_each_key(|section, key, _, with| {
        if key == "sha256" {
            let fits = |digit: &str| judge.judge(&with(Some(digit.repeat(64).into()))).is_ok();
            assert!(fits("a") && !fits("A"), "{}", section.title);
            digests += 1;
        }
    });
    assert!(digests > 1, "{digests} digests");
}

#[test]
fn schema_and_parser_refuse_unknown_key() {
    let (judge, whole) = (Judge::new(), schema());
    for section in reference::sections() {
        let (mut plan, _) = plan_with(&whole, &section);
        assert!(judge.judge(&plan).is_ok(), "{}: {plan}", section.title);
        table(&mut plan, &section).insert("rait".to_owned(), json!("1mbit"));
        assert!(judge.judge(&plan).is_err() && parse(&text(&plan)).is_err(), "{}", section.title);
    }
}

#[test]
fn schema_default_equals_the_absent_key() {
    let mut defaults = 0;
    for_each_key(|section, key, property, with| {
        let Some(default) = property.get("default") else { return };
        let [out, written] = [None, Some(default.clone())].map(|value| parse(&text(&with(value))));
        assert_eq!(out, written, "{}: {key} = {default}", section.title);
        defaults += 1;
    });
    assert!(defaults > 20, "{defaults} defaults");
}

#[test]
fn ranges_are_those_of_the_check() {
    let beyond = |text: &str, by: i64| {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: i64 = digits.parse().unwrap();
        format!("{}{}", number + by, &text[digits.len()..])
    };
    let (mut ranges, mut wrong) = (0, Vec::new());
    for_each_key(|section, key, property, with| {
        let path = section.path.iter().map(|s| if s == "NAME" { "a" } else { s.as_str() });
        let path: Vec<&str> = path.chain([key]).collect();
        let refused = |value: Value| {
            let mut plan = with(Some(value));
            // These keys are valid only with one tool or kind.
            if path == ["flows", "a", "bytes"] {
                plan["flows"]["a"]["tool"] = "ccbench".into();
            } else if *key == *"bytes" {
                plan["probes"]["a"]["kind"] = "http".into();
            } else if path == ["probes", "a", "rate"] {
                plan["probes"]["a"]["kind"] = "udp_stream".into();
            }
            let problems = match read(&text(&plan), &[]) {
                Ok((_, warnings)) => warnings,
                Err(problems) => problems,
            };
            let ours = |p: &&ccbench_proto::plan::check::PlanProblem| {
                p.severity == Severity::Error && p.path == path.join(".")
            };
            problems.iter().find(ours).map(|p| p.reason.clone())
        };
        let mut held = |limit: Value, past: Value| {
            if let Some(why) = refused(limit.clone()) {
                wrong.push(format!("{} = {limit} is refused: {why}", path.join(".")));
            }
            if refused(past.clone()).is_none() {
                wrong.push(format!("{} = {past} passes", path.join(".")));
            }
            ranges += 1;
        };
        for (bound, by) in [("x-from", -1), ("x-to", 1)] {
            if let Some(limit) = property.get(bound).and_then(Value::as_str) {
                held(limit.into(), beyond(limit, by).into());
            }
        }
        for (bound, by) in [("minimum", -1), ("maximum", 1)] {
            if let Some(limit) = property.get(bound).and_then(Value::as_i64) {
                held(limit.into(), (limit + by).into());
            }
        }
    });
    assert!(ranges > 30 && wrong.is_empty(), "{ranges} ranges; {wrong:#?}");
}
