package e2e

import "github.com/ebb-dev/ebb/internal/changefeed/sqlhistory"

// knownToFail is everything that is known to fail, and how: forms of the grammar, and names of fixed histories. Random histories do
// without these forms, and the fixed ones are skipped. EBB_HISTORIES_ALL=1 runs them all the same.
var knownToFail = map[sqlhistory.Form]string{
	// Wedged.
	"versioned: create":           "the sink's table has no column row_start",
	"alter: versioning":           "the sink's table has no column row_start",
	"delete: history":             "the sink's table has no column row_start",
	"sequence: default":           "CREATE TABLE runs before CREATE SEQUENCE has",
	"partition: exchange":         "both tables wait for DDL that never runs",
	"partition: convert to table": "both tables wait for DDL that never runs",
	"create: like after alter":    "made from the table as it was before the ALTER",
	"type: year":                  "later signed columns are read as unsigned",
	"partition: convert table":    "both tables wait for DDL that never runs",
	"create: like":                "made from the table as it was before an ALTER or CREATE INDEX",
	"rename: shadow":              "CREATE TABLE LIKE makes the table from an older one",
	// Differs.
	"create: or replace":                 "no barrier between the old table and the new one",
	"create: or replace as select":       "no barrier between the old table and the new one",
	"foreign key: on delete cascade":     "the sink's child rows stay",
	"foreign key: on delete set null":    "the sink's child rows stay",
	"foreign key: on update cascade":     "the sink's child rows stay",
	"foreign key: on update set null":    "the sink's child rows stay",
	"written: SET STATEMENT":             "the statement is skipped",
	"alter: wait":                        "RENAME after it is not seen",
	"alter: nowait":                      "RENAME after it is not seen",
	"drop: also outside":                 "the sink's table outside the filter is dropped",
	"database: drop with skipped tables": "the sink's table outside the filter is dropped",
	"database: drop":                     "no barrier between the old tables and the new ones",
	"database: or replace":               "no barrier between the old tables and the new ones",
	"trigger: at the sink":               "it fires",
	"rename: into the filter":            "earlier rows are missing",
	"sequence":                           "sequences do not arrive",
	"view: rename":                       "the sink has no views",
	"database: written otherwise":        "CREATE DATABASE with a comment is skipped",
	"create: like outside":               "the sink lacks the table outside the filter",
	"column: default now":                "an ALTER loses the fraction",
	// They end every changefeed of the source.
	"xa: prepared":              "refused without naming the statement",
	"session: statement format": "ends every changefeed of the source",
	"session: row image":        "not tried",
}

// endsOthers are forms that end the changefeeds of all other histories on the source as well. Histories with them run alone.
var endsOthers = []sqlhistory.Form{"xa: prepared", "session: statement format", "session: row image"}

// fixedHistory is a small history that once lost rows.
type fixedHistory struct {
	name sqlhistory.Form
	text string
	// ends is how it may end; equal if it is empty.
	ends []outcome
	// alone: it ends the changefeeds of others.
	alone bool
}

var mayRefuse = []outcome{equal, rejected}

var fixedHistories = []fixedHistory{
	{name: "1 a name used again", text: `
		CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);
		INSERT INTO {a}.log VALUES (1, 'a'), (2, 'b');
		RENAME TABLE {a}.log TO {a}.log_1;
		CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);
		INSERT INTO {a}.log VALUES (3, 'a'), (4, 'b');
		RENAME TABLE {a}.log TO {a}.log_2;
		CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);
		INSERT INTO {a}.log VALUES (5, 'a'), (6, 'b');
		RENAME TABLE {a}.log TO {a}.log_3;
		CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);
		INSERT INTO {a}.log VALUES (7, 'a'), (8, 'b');
		RENAME TABLE {a}.log TO {a}.log_4;
		CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);
		INSERT INTO {a}.log VALUES (9, 'a');
		RENAME TABLE {a}.log TO {a}.log_5;
		CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);
		INSERT INTO {a}.log VALUES (10, 'a');
	`},
	{name: "2 SET STATEMENT", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2);
		SET STATEMENT max_statement_time=0 FOR TRUNCATE TABLE {a}.t;
		INSERT INTO {a}.t VALUES (3);
	`, ends: mayRefuse},
	{name: "2 NOWAIT RENAME", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		ALTER TABLE {a}.t NOWAIT RENAME TO {a}.u;
		INSERT INTO {a}.u VALUES (2);
	`, ends: mayRefuse},
	{name: "2 WAIT RENAME", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		ALTER TABLE {a}.t WAIT 5 RENAME TO {a}.u;
		INSERT INTO {a}.u VALUES (2);
	`, ends: mayRefuse},
	{name: "3 EXCHANGE PARTITION", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20));
		INSERT INTO {a}.p VALUES (1), (11);
		CREATE TABLE {a}.u (id INT PRIMARY KEY);
		INSERT INTO {a}.u VALUES (5), (6);
		ALTER TABLE {a}.p EXCHANGE PARTITION p0 WITH TABLE {a}.u;
		INSERT INTO {a}.u VALUES (7);
		INSERT INTO {a}.p VALUES (2);
	`, ends: mayRefuse},
	{name: "3 CONVERT PARTITION", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20));
		INSERT INTO {a}.p VALUES (1), (11);
		ALTER TABLE {a}.p CONVERT PARTITION p0 TO TABLE {a}.q;
		INSERT INTO {a}.q VALUES (2);
		INSERT INTO {a}.p VALUES (12);
	`, ends: mayRefuse},
	{name: "3 LIKE an altered table", text: `
		CREATE TABLE {a}.b (id INT PRIMARY KEY);
		INSERT INTO {a}.b VALUES (1);
		ALTER TABLE {a}.b ADD c INT;
		CREATE TABLE {a}.a LIKE {a}.b;
		INSERT INTO {a}.a VALUES (1, 2);
	`},
	{name: "4 renamed before the start", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2);
		RENAME TABLE {a}.t TO {a}.u;
		INSERT INTO {a}.u VALUES (3);
		-- start
		INSERT INTO {a}.u VALUES (4);
	`},
	{name: "4 renamed while paused", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		-- pause
		INSERT INTO {a}.t VALUES (2);
		RENAME TABLE {a}.t TO {a}.u;
		INSERT INTO {a}.u VALUES (3);
		-- resume
		INSERT INTO {a}.u VALUES (4);
	`},
	{name: "5 DROP TABLE inside and outside", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o0 (id INT PRIMARY KEY);
		DROP TABLE {a}.t, {x}.o0;
	`},
	{name: "5 DROP DATABASE with a skipped table", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		DROP DATABASE {a};
		CREATE DATABASE {a};
		CREATE TABLE {a}.u (id INT PRIMARY KEY);
		INSERT INTO {a}.u VALUES (2);
	`},
	{name: "6 a trigger at the sink", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, n INT);
		-- wait
		-- sink: CREATE TRIGGER {a}.doubles BEFORE INSERT ON {a}.t FOR EACH ROW SET NEW.n = NEW.n * 2;
		INSERT INTO {a}.t VALUES (1, 1), (2, 2);
	`, ends: mayRefuse},
	{name: "6 ON DELETE CASCADE", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE);
		INSERT INTO {a}.p VALUES (1), (2);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2);
		DELETE FROM {a}.p WHERE id = 1;
	`},
	{name: "6 ON UPDATE CASCADE", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON UPDATE CASCADE);
		INSERT INTO {a}.p VALUES (1), (2);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2);
		UPDATE {a}.p SET id = 9 WHERE id = 1;
	`},
	{name: "6 ON DELETE SET NULL", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE SET NULL);
		INSERT INTO {a}.p VALUES (1), (2);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2);
		DELETE FROM {a}.p WHERE id = 1;
	`},
	{name: "7 a negative number after a YEAR", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, y YEAR, n INT, u INT UNSIGNED, s SMALLINT);
		INSERT INTO {a}.t VALUES (1, 2026, -5, 4294967295, -32768);
	`},
	{name: "8 a large transaction", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, s VARCHAR(40));
		INSERT INTO {a}.t SELECT seq, MD5(seq) FROM {a}.seq_1_to_100000;
		UPDATE {a}.t SET s = 'x' WHERE id % 2 = 0;
	`},
	{name: "9 CREATE OR REPLACE AS SELECT", text: `
		CREATE TABLE {a}.s (id INT PRIMARY KEY, n INT);
		INSERT INTO {a}.s SELECT seq, seq FROM {a}.seq_1_to_500;
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t SELECT seq FROM {a}.seq_1_to_2000;
		UPDATE {a}.t SET id = id + 10000 ORDER BY id DESC;
		CREATE OR REPLACE TABLE {a}.t AS SELECT * FROM {a}.s;
		INSERT INTO {a}.t VALUES (1000, 1);
		CREATE OR REPLACE TABLE {a}.t (PRIMARY KEY (id)) AS SELECT id FROM {a}.s;
		DELETE FROM {a}.t WHERE id < 10;
	`},
	{name: "9 DROP DATABASE and CREATE again", text: `
		CREATE DATABASE {b};
		CREATE TABLE {b}.t (id INT PRIMARY KEY);
		INSERT INTO {b}.t SELECT seq FROM {a}.seq_1_to_2000;
		DROP DATABASE {b};
		CREATE DATABASE {b};
		CREATE TABLE {b}.t (id INT PRIMARY KEY, n INT);
		INSERT INTO {b}.t VALUES (1, 1), (2, 2);
		DROP DATABASE {b};
		CREATE DATABASE {b};
		CREATE TABLE {b}.t (name VARCHAR(10) PRIMARY KEY);
		INSERT INTO {b}.t VALUES ('a'), ('b');
	`},
	{name: "10 a sink that went back", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		-- sink: CREATE TABLE {x}.progress AS SELECT * FROM ebb.progress WHERE changefeed LIKE REPLACE('%{a}', '_a', '');
		INSERT INTO {a}.t VALUES (2), (3);
		-- wait
		-- pause
		-- sink: DELETE FROM {a}.t WHERE id > 1;
		-- sink: UPDATE ebb.progress p JOIN {x}.progress o USING (changefeed, table_schema, table_name) SET p.position = o.position;
		-- resume
		INSERT INTO {a}.t VALUES (4);
	`},
	{name: "11 XA outside the filter", alone: true, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o (id INT PRIMARY KEY);
		XA START '{a}1';
		INSERT INTO {x}.o VALUES (1);
		XA END '{a}1';
		XA PREPARE '{a}1';
		XA COMMIT '{a}1';
		INSERT INTO {a}.t VALUES (1);
	`},
	{name: "11 XA inside the filter", alone: true, ends: mayRefuse, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		XA START '{a}1';
		INSERT INTO {a}.t VALUES (1);
		XA END '{a}1';
		XA PREPARE '{a}1';
		XA COMMIT '{a}1';
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "11 a statement outside the filter", alone: true, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o (id INT PRIMARY KEY);
		SET SESSION binlog_format = STATEMENT;
		INSERT INTO {x}.o VALUES (1);
		SET SESSION binlog_format = ROW;
		INSERT INTO {a}.t VALUES (1);
	`},
	{name: "12 a non-transactional table", ends: mayRefuse, text: `
		CREATE TABLE {a}.t (id INT) ENGINE=MyISAM;
		INSERT INTO {a}.t VALUES (1), (1);
	`},
	{name: "12 a swap of equal tables", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {a}.u (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		INSERT INTO {a}.u VALUES (2);
		RENAME TABLE {a}.t TO {a}.between, {a}.u TO {a}.t, {a}.between TO {a}.u;
		INSERT INTO {a}.t VALUES (3);
		INSERT INTO {a}.u VALUES (4);
	`},
	{name: "13 the fraction of NOW(6)", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2);
		ALTER TABLE {a}.t ADD at DATETIME(6) DEFAULT NOW(6);
	`},
}
