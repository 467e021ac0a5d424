package mariadb

import (
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// omit is what a statement is without what is left out, or why it stops the changefeed.
func omit(t *testing.T, m *omission.Map, text string) string {
	t.Helper()
	d := parseDDL(text, newStatement(text, "s", sessionContext{}, false))
	if d.Kind == stream.UnknownDDL {
		return "unknown"
	}
	const session = stream.SessionMark + "sql_mode=4*/ "
	d.Prefix(session, text)
	to, err := m.DDL(d)
	switch {
	case err != nil:
		_, why, _ := strings.Cut(err.Error(), `": `)
		why, _, _ = strings.Cut(why, "; start again")
		return "stops: " + why
	case !strings.HasPrefix(to.Statement, session):
		return "no session: " + to.Statement
	}
	for _, s := range to.Spots {
		if got := strings.Trim(to.Statement[s.From:s.To], "`"); !strings.HasSuffix(got, s.Table.Name) {
			t.Errorf("%s: table %s is not at %q", text, s.Table, got)
		}
	}
	return to.Text()
}

func TestColumnsAreLeftOutOfDDL(t *testing.T) {
	m, err := omission.Parse([]omission.Rule{{Match: "s.*", Columns: []string{"secret", "Pin"}}, {Match: "s.other", Columns: []string{"more"}}})
	if err != nil {
		t.Fatal(err)
	}
	const key, partition = "stops: column secret is left out, and is a column of a primary or unique key", "stops: column secret is left out, and a constraint, a partition or another clause is about it"
	for _, c := range []struct{ statement, want string }{
		{"CREATE TABLE t (id INT PRIMARY KEY, secret INT, v INT)", "CREATE TABLE t (id INT PRIMARY KEY, v INT)"},
		{"CREATE TABLE t (secret INT, id INT, PIN CHAR(4) DEFAULT ',', PRIMARY KEY (id))", "CREATE TABLE t (id INT, PRIMARY KEY (id))"},
		{"CREATE TABLE `t` (\n  `id` int,\n  `secret` varchar(9) DEFAULT 'a)',\n  PRIMARY KEY (`id`),\n  KEY `k` (`secret`(3),`id`),\n  KEY `l` (`id`)\n) ENGINE=InnoDB", "CREATE TABLE `t` (\n  `id` int,\n  PRIMARY KEY (`id`),\n  KEY `l` (`id`)\n) ENGINE=InnoDB"},
		{"CREATE TABLE x.t (id INT, secret INT)", "CREATE TABLE x.t (id INT, secret INT)"},
		{"CREATE TABLE t (id INT, KEY secret (id))", "CREATE TABLE t (id INT, KEY secret (id))"},
		{"CREATE TABLE t (id INT, secret INT, KEY (secret, id))", "CREATE TABLE t (id INT)"},
		{"CREATE TABLE t (id INT, secret INT, KEY (id, secret))", "stops: column secret is left out, and is a column of a key that has no name; give the key a name"},
		{"CREATE TABLE t (id INT, secret INT, FULLTEXT KEY f (secret) COMMENT 'x')", "CREATE TABLE t (id INT)"},
		{"CREATE TABLE t (id INT, secret INT UNIQUE)", "stops: column secret is left out, and is defined with a key"},
		{"CREATE TABLE t (secret INT KEY)", "stops: column secret is left out, and is defined with a key"},
		{"CREATE TABLE t (id INT, secret INT REFERENCES p (id))", "stops: column secret is left out, and is defined with a foreign key"},
		{"CREATE TABLE t (id INT, secret INT, PRIMARY KEY (id, secret))", key},
		{"CREATE TABLE t (id INT, secret INT, UNIQUE u (secret))", key},
		{"CREATE TABLE t (id INT, secret INT, CONSTRAINT c UNIQUE (id, `SECRET`))", key},
		{"CREATE TABLE t (id INT, secret INT, FOREIGN KEY (secret) REFERENCES p (id))", partition},
		{"CREATE TABLE t (id INT, secret INT, CONSTRAINT c CHECK (secret > id))", partition},
		{"CREATE TABLE t (id INT, secret INT CHECK (secret > 0))", "CREATE TABLE t (id INT)"},
		{"CREATE TABLE t (id INT, secret INT, g INT AS (secret + 1))", "stops: column secret is left out, and the definition or the place of column g depends on it"},
		{"CREATE TABLE t (id INT, secret INT, g INT DEFAULT secret)", "stops: column secret is left out, and the definition or the place of column g depends on it"},
		{"CREATE TABLE t (id INT, pin INT AS (secret + 1), secret INT)", "CREATE TABLE t (id INT)"},
		{"CREATE TABLE t (id INT, secret INT) PARTITION BY HASH (secret)", "stops: column secret is left out, and the table is partitioned by it"},
		{"CREATE TABLE t (id INT, secret INT) PARTITION BY HASH (id)", "CREATE TABLE t (id INT) PARTITION BY HASH (id)"},
		{"CREATE TABLE t (id INT, secret INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5), PARTITION q VALUES LESS THAN (MAXVALUE))", "CREATE TABLE t (id INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5), PARTITION q VALUES LESS THAN (MAXVALUE))"},
		{"CREATE TABLE t (id INT, secret INT) PARTITION BY LIST (secret) (PARTITION p VALUES IN (5))", "stops: column secret is left out, and the table is partitioned by it"},
		{"CREATE TABLE t (id INT, secret INT) VALUES (1, 2)", "stops: columns or rows are left out of table s.t, and it is not known which columns it is about"},
		{"CREATE TABLE t (secret INT)", "stops: all columns of table s.t are left out"},
		{"CREATE TABLE t (id INT) AS SELECT 1 AS secret", "stops: columns or rows are left out of table s.t, and it is not known which columns it is about"},
		{"CREATE TABLE t (id INT, `sécret` INT)", "stops: column secret is left out, and it is not certain whether the server takes sécret for the same name"},
		{"CREATE TABLE t (id INT, `sécrets` INT)", "CREATE TABLE t (id INT, `sécrets` INT)"},
		{"CREATE TABLE t LIKE u", "CREATE TABLE t LIKE u"},
		{"CREATE TABLE t LIKE other", "stops: columns or rows are left out of table s.t or of table s.other, and not the same of both"},
		{"CREATE TABLE x.t LIKE t", "stops: columns or rows are left out of table x.t or of table s.t, and not the same of both"},
		{"CREATE SEQUENCE q", "CREATE SEQUENCE q"},
		{"ALTER SEQUENCE q RESTART", "ALTER SEQUENCE q RESTART"},
		{"ALTER TABLE t ADD secret INT", ""},
		{"SET STATEMENT max_statement_time=5 FOR ALTER TABLE t ADD COLUMN IF NOT EXISTS `Secret` INT AFTER id, ADD v INT", "SET STATEMENT max_statement_time=5 FOR ALTER TABLE t ADD v INT"},
		{"ALTER TABLE t ADD v INT, ADD secret INT, ADD w INT;", "ALTER TABLE t ADD v INT, ADD w INT;"},
		{"ALTER TABLE t ADD v INT AFTER secret", "stops: column secret is left out, and the definition or the place of column v depends on it"},
		{"ALTER TABLE t ADD (v INT, secret INT)", partition},
		{"ALTER TABLE t ADD v INT FIRST, DROP COLUMN secret, COMMENT='secret'", "ALTER TABLE t ADD v INT FIRST, COMMENT='secret'"},
		{"ALTER TABLE t DROP secret, DROP IF EXISTS pin", ""},
		{"ALTER TABLE t MODIFY secret BIGINT, ALTER COLUMN secret SET DEFAULT 5", ""},
		{"ALTER TABLE t MODIFY secret BIGINT UNIQUE", "stops: column secret is left out, and is defined with a key"},
		{"ALTER TABLE t CHANGE secret pin INT, RENAME COLUMN pin TO secret", ""},
		{"ALTER TABLE t CHANGE secret shown INT", "stops: column secret is left out and becomes shown, which is not, and the sink does not have its values"},
		{"ALTER TABLE t RENAME COLUMN v TO secret", "stops: column v becomes secret, which is left out"},
		{"ALTER TABLE t ADD KEY k (secret), ADD KEY l (v)", "ALTER TABLE t ADD KEY l (v)"},
		{"ALTER TABLE t ADD UNIQUE (secret)", key},
		{"ALTER TABLE t ADD CONSTRAINT CHECK (secret > 0)", partition},
		{"ALTER TABLE t DROP KEY k, DROP INDEX IF EXISTS l, DROP PRIMARY KEY", "ALTER TABLE t DROP KEY IF EXISTS k, DROP INDEX IF EXISTS l, DROP PRIMARY KEY"},
		{"ALTER TABLE x.t DROP KEY k", "ALTER TABLE x.t DROP KEY k"},
		{"ALTER TABLE t ADD secret INT PARTITION BY HASH (id)", "stops: column secret is left out, and is defined with a clause about partitions"},
		{"ALTER TABLE t PARTITION BY HASH (secret)", partition},
		{"ALTER TABLE t ORDER BY secret", partition},
		{"ALTER TABLE t DROP secret, RENAME TO u", "ALTER TABLE t RENAME TO u"},
		{"ALTER TABLE t DROP secret, RENAME TO other", "stops: columns or rows are left out of table s.t or of table s.other, and not the same of both"},
		{"ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u"},
		{"ALTER TABLE t EXCHANGE PARTITION p WITH TABLE other", "stops: columns or rows are left out of table s.t or of table s.other, and not the same of both"},
		{"RENAME TABLE t TO u, v TO w", "RENAME TABLE t TO u, v TO w"},
		{"RENAME TABLE t TO x.t", "stops: columns or rows are left out of table s.t or of table x.t, and not the same of both"},
		{"CREATE INDEX k ON t (secret)", ""},
		{"CREATE INDEX secret ON t (v)", "CREATE INDEX secret ON t (v)"},
		{"CREATE UNIQUE INDEX k ON t (v, secret)", key},
		{"DROP INDEX k ON t", "DROP INDEX IF EXISTS k ON t"},
		{"DROP INDEX IF EXISTS k ON t", "DROP INDEX IF EXISTS k ON t"},
		{"TRUNCATE t", "TRUNCATE t"},
		{"DROP TABLE t, x.t", "DROP TABLE t, x.t"},
		{"ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4"},
		{"ALTER TABLE t ADD period INT, DROP SYSTEM VERSIONING, DROP PERIOD FOR p", "ALTER TABLE t ADD period INT, DROP SYSTEM VERSIONING, DROP PERIOD FOR p"},
	} {
		if got := omit(t, m, c.statement); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.statement, got, c.want)
		}
	}
}

func TestDDLMustNotChangeWhichRowsAreLeftOut(t *testing.T) {
	m, err := omission.Parse([]omission.Rule{{Match: "s.t", Rows: "region = 7"}, {Match: "s.text", Rows: "name = 'x'"}})
	if err != nil {
		t.Fatal(err)
	}
	const stops = "stops: rows of table s.t are left out by column region, which it may change"
	for _, c := range []struct{ statement, want string }{
		{"CREATE TABLE t (id INT, region INT, KEY (region))", "CREATE TABLE t (id INT, region INT, KEY (region))"},
		{"CREATE TABLE t (id INT)", "stops: rows of table s.t are left out by column region, which it does not have"},
		{"ALTER TABLE t ADD v INT, ADD KEY (region), DROP KEY k", "ALTER TABLE t ADD v INT, ADD KEY (region), DROP KEY k"},
		{"ALTER TABLE t MODIFY Region BIGINT", stops},
		{"ALTER TABLE t ADD PRIMARY KEY (id, region)", stops},
		{"ALTER TABLE t ADD UNIQUE (v)", "ALTER TABLE t ADD UNIQUE (v)"},
		{"ALTER IGNORE TABLE t ADD UNIQUE (v)", "stops: rows of table s.t are left out, and which rows IGNORE removes may depend on them"},
		{"ALTER TABLE t ADD n INT AUTO_INCREMENT PRIMARY KEY", "stops: rows of table s.t are left out, and it numbers the others"},
		{"ALTER TABLE t ADD (n SERIAL)", "stops: rows of table s.t are left out, and it numbers the others"},
		{"ALTER TABLE t ADD n INT DEFAULT NEXT VALUE FOR q", "stops: rows of table s.t are left out, and it numbers the others"},
		{"ALTER TABLE t ADD n INT DEFAULT NEXTVAL(q)", "stops: rows of table s.t are left out, and it numbers the others"},
		{"ALTER TABLE t ADD n INT DEFAULT q.nextval", "stops: rows of table s.t are left out, and it numbers the others"},
		{"ALTER TABLE t ADD KEY nextval (nextval)", "ALTER TABLE t ADD KEY nextval (nextval)"},
		{"ALTER TABLE t ADD serial INT AFTER next, ADD next INT AFTER serial", "ALTER TABLE t ADD serial INT AFTER next, ADD next INT AFTER serial"},
		{"ALTER TABLE t ADD (serial INT, previous INT AS (next + 1), CHECK (lastval > 0))", "ALTER TABLE t ADD (serial INT, previous INT AS (next + 1), CHECK (lastval > 0))"},
		{"ALTER TABLE t AUTO_INCREMENT = 500", "ALTER TABLE t AUTO_INCREMENT = 500"},
		{"ALTER TABLE t DROP region", stops},
		{"ALTER TABLE t CHANGE v region INT", stops},
		{"ALTER TABLE t RENAME COLUMN region TO v", stops},
		{"ALTER TABLE t ALTER région SET DEFAULT 1", stops},
		{"ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4"},
		{"ALTER TABLE text CONVERT TO CHARACTER SET utf8mb4", "stops: rows of table s.text are left out by columns of text, and it may convert them"},
		{"ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", "stops: columns or rows are left out of table s.t or of table s.u, and not the same of both"},
		{"RENAME TABLE t TO u", "stops: columns or rows are left out of table s.t or of table s.u, and not the same of both"},
	} {
		if got := omit(t, m, c.statement); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.statement, got, c.want)
		}
	}
}
