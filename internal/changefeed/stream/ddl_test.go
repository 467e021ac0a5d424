package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// tables parses schema.name, separated by spaces.
func tables(text string) (list []Table) {
	for _, word := range strings.Fields(text) {
		schema, name, _ := strings.Cut(word, ".")
		list = append(list, Table{Schema: schema, Name: name})
	}
	return list
}

func TestOfADDLOnlyWhatIsInsideTheFilterIsExecuted(t *testing.T) {
	inside := Filter{"in.*", "!in.hidden"}
	for _, c := range []struct {
		name   string
		filter Filter
		ddl    DDL
		want   string
	}{
		{"all inside", inside, DDL{Kind: DropTable, Statement: "DROP TABLE in.a", Tables: tables("in.a")}, "DROP TABLE in.a"},
		{"drop inside and outside", inside, DDL{Kind: DropTable, Statement: SessionMark + "sql_mode=4*/ DROP TABLE a, out.b, hidden", Tables: tables("in.a out.b in.hidden")}, SessionMark + "sql_mode=4*/ DROP TABLE `in`.`a`"},
		{"drop if exists", inside, DDL{Kind: DropTable, IfExists: true, Tables: tables("in.a` out.b in.c")}, "DROP TABLE IF EXISTS `in`.`a```, `in`.`c`"},
		{"drop sequences", inside, DDL{Kind: DropTable, Sequences: true, IfExists: true, Tables: tables("in.a out.b"), Reads: tables("in.c")}, "DROP SEQUENCE IF EXISTS `in`.`a`"},
		{"drop outside", inside, DDL{Kind: DropTable, Tables: tables("out.b in.hidden")}, "nothing"},
		{"rename inside", inside, DDL{Kind: RenameTable, Statement: "as is", Tables: tables("in.a in.b"), Becomes: tables("in.b in.a")}, "as is"},
		{"rename out", inside, DDL{Kind: RenameTable, Statement: "as is", Tables: tables("in.a"), Becomes: tables("out.a")}, " releases [in.a]"},
		{"rename in", inside, DDL{Kind: RenameTable, Statement: "RENAME", Tables: tables("in.a in.hidden"), Becomes: tables("in.old in.a")}, `stops: statement "RENAME": table in.hidden is outside the filter and becomes in.a, which is inside; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"rename some", inside, DDL{Kind: RenameTable, Statement: "as is", Tables: tables("in.a in.b out.x"), Becomes: tables("in.c in.a out.y")}, "RENAME TABLE `in`.`a` TO `in`.`c`, `in`.`b` TO `in`.`a`"},
		{"rename some and out", inside, DDL{Kind: RenameTable, Statement: "as is", Tables: tables("in.a in.b"), Becomes: tables("in.c out.b")}, "RENAME TABLE `in`.`a` TO `in`.`c` releases [in.b]"},
		{"rename over one that leaves", inside, DDL{Kind: RenameTable, Statement: "x", Tables: tables("in.a in.b"), Becomes: tables("out.a in.a")}, `stops: statement "x": a table takes the name of one that leaves the filter, which stays at the sink; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"a circle and others", inside, DDL{Kind: RenameTable, Statement: "x", Tables: tables("in.a in.b out.b"), Becomes: tables("in.b in.a out.a")}, `stops: statement "x": it renames tables in a circle, and others outside the filter; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"rename outside", inside, DDL{Kind: RenameTable, Tables: tables("out.a"), Becomes: tables("out.b")}, "nothing"},
		{"like outside", inside, DDL{Kind: CreateTable, Statement: "x", Tables: tables("in.a"), Reads: tables("out.a")}, `stops: statement "x": table out.a is outside the filter and table in.a inside; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"outside like inside", inside, DDL{Kind: CreateTable, Tables: tables("out.a"), Reads: tables("in.a")}, "nothing"},
		{"exchange with outside", inside, DDL{Kind: AlterTable, Statement: "x", Tables: tables("in.a out.a")}, `stops: statement "x": table out.a is outside the filter and table in.a inside; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"convert to outside", inside, DDL{Kind: AlterTable, Statement: "x", Tables: tables("in.a"), Makes: tables("out.a")}, `stops: statement "x": table out.a is outside the filter and table in.a inside; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"convert outside", inside, DDL{Kind: AlterTable, Tables: tables("out.a"), Removes: tables("out.b")}, "nothing"},
		{"unknown", nil, DDL{Kind: UnknownDDL, Statement: "FROB  NICATE"}, `stops: statement "FROB NICATE": it is not known what this statement does to tables; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"may differ inside", inside, DDL{Kind: AlterTable, Statement: "x", Tables: tables("in.a"), Differs: "why"}, `stops: statement "x": why; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"may differ outside", inside, DDL{Kind: AlterTable, Tables: tables("out.a"), Differs: "why"}, "nothing"},
		{"unreadable inside", inside, DDL{Kind: UnreadableRows, Statement: "XA", Tables: tables("out.a in.a")}, "stops: XA: misconfigured; retrying will not help"},
		{"unreadable anywhere", inside, DDL{Kind: UnreadableRows, Statement: "CALL"}, "stops: CALL: misconfigured; retrying will not help"},
		{"unreadable outside", inside, DDL{Kind: UnreadableRows, Statement: "XA", Tables: tables("out.a")}, "nothing"},
		{"no data", nil, DDL{Kind: OtherDDL, Statement: "GRANT"}, "nothing"},
		{"schema inside", inside, DDL{Kind: SetSchema, Schema: "in", Statement: "CREATE DATABASE"}, "CREATE DATABASE"},
		{"schema of one table", Filter{"in.a"}, DDL{Kind: SetSchema, Schema: "in", Statement: "CREATE DATABASE"}, "CREATE DATABASE"},
		{"schema outside", inside, DDL{Kind: DropSchema, Schema: "out"}, "nothing"},
		{"schema excluded", Filter{"!out.*"}, DDL{Kind: DropSchema, Schema: "out"}, "nothing"},
		{"replace a schema outside", inside, DDL{Kind: ReplaceSchema, Schema: "out"}, "nothing"},
		{"replace a schema inside", inside, DDL{Kind: ReplaceSchema, Schema: "in", Statement: "x"}, `stops: statement "x": it drops the schema and creates it again, which is not executed at the sink; use DROP DATABASE and CREATE DATABASE; start again with a new changefeed, from a copy taken after it: misconfigured; retrying will not help`},
		{"drop a schema", inside, DDL{Kind: DropSchema, Schema: "in", Statement: "DROP DATABASE"}, "DROP DATABASE [in.* !in.hidden]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			was := fmt.Sprint(c.ddl)
			plan, err := c.filter.Plan(&c.ddl)
			got := "nothing"
			switch {
			case err != nil:
				got = "stops: " + err.Error()
				if !errors.Is(err, ErrUnusable) {
					t.Error("retrying would be tried")
				}
			case plan != nil:
				got = plan.Statement
				if plan.Releases != nil {
					got += fmt.Sprintf(" releases %v", plan.Releases)
				}
				if plan.Filter != nil {
					got += fmt.Sprintf(" %v", plan.Filter)
				}
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if fmt.Sprint(c.ddl) != was {
				t.Error("the DDL was changed")
			}
		})
	}
}

func TestAWholeSchemaIsInsideTheFilter(t *testing.T) {
	for _, c := range []struct {
		filter Filter
		want   bool
	}{
		{nil, true}, {Filter{"s.*"}, true}, {Filter{"*.*"}, true}, {Filter{"s.a*"}, false}, {Filter{"s.*", "!s.a"}, false}, {Filter{"!s.a", "s.*"}, true}, {Filter{"!x.*"}, true}, {Filter{"x.*"}, false},
	} {
		if got := c.filter.AllowsSchema("s"); got != c.want {
			t.Errorf("%v: %v", c.filter, got)
		}
	}
}

// What a statement has done that failed is known of few, and of the others only to which tables.
func TestWhatAStatementHasDoneThatFailed(t *testing.T) {
	for _, c := range []struct {
		ddl  DDL
		want string
	}{
		{DDL{Kind: DropTable, Statement: "DROP TABLE in.a, in.b", Tables: tables("in.a in.b")}, "drop [in.a in.b] DROP TABLE IF EXISTS `in`.`a`, `in`.`b`"},
		{DDL{Kind: CreateTable, Replaces: true, Statement: "x", Tables: tables("in.a")}, "drop [in.a] DROP TABLE IF EXISTS `in`.`a`"},
		{DDL{Kind: AlterTable, Statement: "ALTER", Tables: tables("in.a")}, "alter [in.a] ALTER it failed at the source and is in the log all the same, so that it is not known what it has done"},
	} {
		c.ddl.Failed()
		if got := strings.TrimSpace(fmt.Sprint(c.ddl.Kind, " ", c.ddl.Tables, " ", c.ddl.Statement, " ", c.ddl.Differs)); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		if c.ddl.Differs != "" && c.ddl.Alone() {
			t.Error("the dispatcher would execute it")
		}
	}
}
