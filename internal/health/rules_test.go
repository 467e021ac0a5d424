package health_test

import (
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
)

func rule(name, when string, quarantine, drain bool) drainconfig.Rule {
	return drainconfig.Rule{Name: name, When: when, Quarantine: quarantine, Drain: drain, Where: "drain.toml:1: rules[0].when"}
}

func TestRulesDecideAboutEvents(t *testing.T) {
	force, skip := &v1alpha1.Overrides{Force: true}, &v1alpha1.Overrides{Skip: true}
	rules := []drainconfig.Rule{
		rule("by-check", `event.checkName == "Xid" && event.errorCode.exists(c, c == "79")`, true, false),
		rule("by-agent", `event.agent == "syslog" && event.componentClass.startsWith("GPU")`, true, true),
		rule("by-action", `event.recommendedAction == "NONE"`, false, false),
		rule("by-metadata", `event.metadata["zone"] == "a"`, true, true),
		rule("by-entity", `event.entitiesImpacted.exists(e, e.entityType == "NIC" && e.entityValue.matches("^eth[0-9]$"))`, true, true),
	}
	for _, tc := range []struct {
		what              string
		spec              v1alpha1.HealthEventSpec
		quarantine, drain bool
		reason            string
	}{
		{"fatal", v1alpha1.HealthEventSpec{IsFatal: true}, true, true, "The problem is fatal."},
		{"not fatal", v1alpha1.HealthEventSpec{}, false, false, "The problem is not fatal."},
		{"a check with a code", v1alpha1.HealthEventSpec{CheckName: "Xid", ErrorCode: []string{"1", "79"}, IsFatal: true}, true, false, "Rule by-check matches."},
		{"an agent and a class", v1alpha1.HealthEventSpec{Agent: "syslog", ComponentClass: "GPU0"}, true, true, "Rule by-agent matches."},
		{"an action, though fatal", v1alpha1.HealthEventSpec{RecommendedAction: "NONE", IsFatal: true}, false, false, "Rule by-action matches."},
		{"metadata", v1alpha1.HealthEventSpec{Metadata: map[string]string{"zone": "a"}}, true, true, "Rule by-metadata matches."},
		{"an entity", v1alpha1.HealthEventSpec{EntitiesImpacted: []v1alpha1.Entity{{EntityType: "NIC", EntityValue: "eth0"}}}, true, true, "Rule by-entity matches."},
		{"forced quarantine", v1alpha1.HealthEventSpec{QuarantineOverrides: force}, true, false, "The event forces the quarantine."},
		{"forced drain", v1alpha1.HealthEventSpec{DrainOverrides: force}, true, true, "The event forces the drain."},
		{"skipped drain", v1alpha1.HealthEventSpec{IsFatal: true, DrainOverrides: skip}, true, false, "The event skips the drain."},
		{"skipped quarantine", v1alpha1.HealthEventSpec{IsFatal: true, QuarantineOverrides: skip}, false, false, "The event skips the quarantine."},
		{"skipped quarantine wins over a forced drain", v1alpha1.HealthEventSpec{QuarantineOverrides: skip, DrainOverrides: force}, false, false, "The event skips the quarantine."},
		{"force does nothing where a rule says so", v1alpha1.HealthEventSpec{IsFatal: true, DrainOverrides: force, QuarantineOverrides: force}, true, true, "The problem is fatal."},
	} {
		t.Run(tc.what, func(t *testing.T) {
			compiled, err := health.CompileRules(rules)
			if err != nil {
				t.Fatal(err)
			}
			got := compiled.Decide(&v1alpha1.HealthEvent{Spec: tc.spec})
			if want := (health.Decision{Quarantine: tc.quarantine, Drain: tc.drain, Reason: tc.reason}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

func TestExpressionsThatCannotWorkAreRefusedAtTheStart(t *testing.T) {
	for expression, want := range map[string]string{
		`event.chekName == "a"`:  "undefined field 'chekName'",
		`event.checkName`:        "a rule needs true or false",
		`event.checkName = "a"`:  "Syntax error",
		`event.version == "one"`: "found no matching overload",
		`node.name == "a"`:       "undeclared reference",
	} {
		_, err := health.CompileRules([]drainconfig.Rule{rule("r", expression, true, true)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "drain.toml:1: rules[0].when") {
			t.Errorf("%s: %v, want %s", expression, err, want)
		}
	}
}
