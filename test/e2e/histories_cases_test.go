package e2e

import (
	"fmt"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlhistory"
)

// knownToFail is everything that is known to fail, and how: forms of the grammar, and names of fixed histories. Random histories do
// without these forms, and the fixed ones are skipped. EBB_HISTORIES_ALL=1 runs them all the same.
var knownToFail = map[sqlhistory.Form]string{}

// endsOthers are forms that may end the changefeeds of all other histories on the source as well, because it is not known which tables
// a statement has changed. Histories with them run alone.
var endsOthers = []sqlhistory.Form{"session: statement format"}

// fixedHistory is a small history that once lost rows.
type fixedHistory struct {
	name sqlhistory.Form
	text string
	// ends is how it may end; equal if it is empty.
	ends []outcome
	// leaves is what the changefeed leaves out: columns c1, c4, c7 and so on, and rows with certain values of id.
	leaves omits
	// snapshot: the changefeed copies what there is when it starts.
	snapshot bool
}

// nameUsedAgain makes, fills and renames a table many times in a burst.
func nameUsedAgain(times int) string {
	var b strings.Builder
	for i := range times {
		fmt.Fprintf(&b, "CREATE TABLE {a}.log (id INT PRIMARY KEY, s TEXT);\nINSERT INTO {a}.log VALUES (%d, 'a'), (-1, 'b');\nRENAME TABLE {a}.log TO {a}.log_%d;\n", i, i)
	}
	return b.String()
}

var mayRefuse = []outcome{equal, rejected}

var fixedHistories = append(hiddenHistories, []fixedHistory{
	{name: "1 a name used again", text: nameUsedAgain(60)},
	{name: "2 SET STATEMENT", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2);
		SET STATEMENT max_statement_time=0 FOR TRUNCATE TABLE {a}.t;
		INSERT INTO {a}.t VALUES (3);
	`, ends: mayRefuse},
	{name: "2 NOWAIT RENAME", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
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
		-- sink: CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- begin
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
	{name: "6 cascades through several tables, in one transaction", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY, n INT);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE ON UPDATE CASCADE);
		CREATE TABLE {a}.d (c INT, s VARCHAR(9), FOREIGN KEY (c) REFERENCES {a}.c (id) ON DELETE SET NULL);
		CREATE TABLE {a}.e (id INT PRIMARY KEY, d INT REFERENCES {a}.c (id) ON DELETE CASCADE, g INT AS (d + 1) VIRTUAL);
		CREATE TABLE {a}.r (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id));
		INSERT INTO {a}.p SELECT seq, seq FROM {a}.seq_1_to_50;
		INSERT INTO {a}.c SELECT seq, 1 + seq % 50 FROM {a}.seq_1_to_200;
		INSERT INTO {a}.d SELECT 1 + seq % 200, 'x' FROM {a}.seq_1_to_400;
		INSERT INTO {a}.e (id, d) SELECT seq, 1 + seq % 200 FROM {a}.seq_1_to_400;
		BEGIN;
		DELETE FROM {a}.p WHERE id < 10;
		INSERT INTO {a}.p VALUES (1, 1), (2, 2), (3, 3);
		INSERT INTO {a}.c VALUES (1000, 1), (1001, 2);
		UPDATE {a}.p SET id = id + 1000 WHERE id IN (2, 20, 21) ORDER BY id DESC;
		INSERT INTO {a}.r VALUES (1, 1), (2, 1020);
		DELETE FROM {a}.r WHERE id = 1;
		DELETE FROM {a}.p WHERE id IN (1, 1021);
		REPLACE INTO {a}.p VALUES (30, 99);
		UPDATE {a}.d SET s = 'y' WHERE c IS NULL;
		COMMIT;
		DELETE {a}.p, {a}.c FROM {a}.p JOIN {a}.c ON c.p = p.id WHERE p.id BETWEEN 31 AND 35;
	`},
	{name: "6 a cascade within one table", text: `
		CREATE TABLE {a}.tree (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES {a}.tree (id) ON DELETE CASCADE);
		INSERT INTO {a}.tree VALUES (1, NULL), (2, 1), (3, 2), (4, 3), (5, 1), (6, NULL), (7, 6);
		DELETE FROM {a}.tree WHERE id IN (2, 3, 6);
		INSERT INTO {a}.tree VALUES (2, 5), (3, 2);
		ALTER TABLE {a}.tree ADD COLUMN s VARCHAR(9) DEFAULT 'z';
		DELETE FROM {a}.tree WHERE id = 5;
	`},
	{name: "6 keys that are added and dropped, and tables with them renamed and made again", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT);
		CREATE TABLE {a}.k (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id));
		INSERT INTO {a}.p SELECT seq FROM {a}.seq_1_to_100;
		INSERT INTO {a}.c SELECT seq, seq FROM {a}.seq_1_to_100;
		DELETE FROM {a}.p WHERE id = 100;
		DELETE FROM {a}.c WHERE id = 100;
		ALTER TABLE {a}.c ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE;
		DELETE FROM {a}.p WHERE id > 90;
		RENAME TABLE {a}.p TO {a}.q;
		DELETE FROM {a}.q WHERE id > 80;
		INSERT INTO {a}.k VALUES (1, 80);
		TRUNCATE {a}.k;
		ALTER TABLE {a}.c DROP FOREIGN KEY f;
		DELETE FROM {a}.q WHERE id > 70;
		ALTER TABLE {a}.c ADD COLUMN x INT REFERENCES {a}.q (id) ON UPDATE CASCADE ON DELETE SET NULL, RENAME TO {a}.d;
		UPDATE {a}.d SET x = id WHERE id <= 70;
		UPDATE {a}.q SET id = id + 1000 WHERE id < 20;
		DELETE FROM {a}.q WHERE id < 40;
		CREATE TABLE {a}.e LIKE {a}.d;
		INSERT INTO {a}.e SELECT * FROM {a}.d;
		SET foreign_key_checks = 0;
		DROP TABLE {a}.q;
		CREATE TABLE {a}.q (id INT PRIMARY KEY);
		INSERT INTO {a}.q SELECT seq FROM {a}.seq_41_to_70;
		DELETE FROM {a}.q WHERE id = 70;
		SET foreign_key_checks = 1;
		DELETE FROM {a}.q WHERE id > 60;
		DROP TABLE {a}.d;
		DELETE FROM {a}.q WHERE id > 50;
	`},
	{name: "6 a parent outside the filter", text: `
		CREATE TABLE {x}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {x}.p (id) ON DELETE CASCADE);
	`, ends: []outcome{rejected}},
	{name: "6 a child outside the filter", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		INSERT INTO {a}.p VALUES (1);
		CREATE TABLE {x}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE);
	`, ends: []outcome{rejected}},
	{name: "6 a parent that leaves the filter", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE);
		INSERT INTO {a}.p VALUES (1), (2);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2);
		RENAME TABLE {a}.p TO {x}.p;
		DELETE FROM {x}.p WHERE id = 1;
		INSERT INTO {a}.c VALUES (3, 2);
	`, ends: []outcome{rejected}},
	{name: "6 a child that leaves the filter", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE);
		INSERT INTO {a}.p VALUES (1), (2);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2);
		ALTER TABLE {a}.c RENAME TO {x}.c;
		DELETE FROM {a}.p WHERE id = 1;
	`, ends: []outcome{rejected}},
	{name: "6 a sink without the key", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, CONSTRAINT f FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE);
		INSERT INTO {a}.p VALUES (1), (2);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2);
		-- wait
		-- pause
		-- sink: ALTER TABLE {a}.c DROP FOREIGN KEY f;
		-- resume
		DELETE FROM {a}.p WHERE id = 1;
	`, ends: []outcome{rejected}},
	{name: "6 a key that is added while the changefeed is paused", text: `
		CREATE TABLE {a}.p (id INT PRIMARY KEY);
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT);
		INSERT INTO {a}.p VALUES (1), (2), (3);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2), (3, 3);
		-- wait
		-- pause
		DELETE FROM {a}.c WHERE id = 3;
		ALTER TABLE {a}.c ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE;
		DELETE FROM {a}.p WHERE id = 1;
		-- resume
		DELETE FROM {a}.p WHERE id = 2;
	`},
	{name: "6 keys outside the filter that do not cascade", text: `
		CREATE TABLE {x}.u (id INT PRIMARY KEY);
		INSERT INTO {x}.u VALUES (1), (2);
		CREATE TABLE {a}.p (id INT PRIMARY KEY, u INT, FOREIGN KEY (u) REFERENCES {x}.u (id));
		CREATE TABLE {a}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id) ON DELETE CASCADE ON UPDATE CASCADE);
		CREATE TABLE {x}.o (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {a}.p (id));
		INSERT INTO {a}.p VALUES (1, 1), (2, 2), (3, NULL);
		INSERT INTO {a}.c VALUES (1, 1), (2, 2), (3, 3);
		UPDATE {a}.p SET u = 2 WHERE id = 1;
		UPDATE {a}.p SET id = 7 WHERE id = 3;
		DELETE FROM {a}.p WHERE id = 2;
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
		-- sink: CREATE TABLE {x}.progress AS SELECT * FROM ebb.progress WHERE feed LIKE REPLACE('%/{a}/%', '_a/', '/');
		INSERT INTO {a}.t VALUES (2), (3);
		-- wait
		-- pause
		-- sink: DELETE FROM {a}.t WHERE id > 1;
		-- sink: UPDATE ebb.progress p JOIN {x}.progress o USING (feed, table_schema, table_name, since) SET p.position = o.position;
		-- resume
		INSERT INTO {a}.t VALUES (4);
	`},
	{name: "10 a sink that lost a table's last rows", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		-- sink: CREATE TABLE {x}.progress AS SELECT * FROM ebb.progress WHERE table_schema = '{a}';
		INSERT INTO {a}.t VALUES (2), (3);
		-- wait
		-- sink: DELETE FROM {a}.t WHERE id > 1;
		-- sink: UPDATE ebb.progress p JOIN {x}.progress o USING (feed, table_schema, table_name, since) SET p.position = o.position;
		INSERT INTO {a}.t VALUES (4);
	`},
	{name: "10 a sink that crashed and lost a table's last rows before an ALTER", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		-- sink: CREATE TABLE {x}.progress AS SELECT * FROM ebb.progress WHERE feed LIKE REPLACE('%/{a}/%', '_a/', '/');
		INSERT INTO {a}.t VALUES (2), (3);
		-- wait
		-- sink: DELETE FROM {a}.t WHERE id > 1;
		-- sink: UPDATE ebb.progress p JOIN {x}.progress o USING (feed, table_schema, table_name, since) SET p.position = o.position, p.counter = p.counter + (p.table_name = '');
		ALTER TABLE {a}.t ADD n INT DEFAULT 5;
		INSERT INTO {a}.t VALUES (4, 4);
	`},
	{name: "10 a sink that crashed and lost a table's last rows before a RENAME", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		-- sink: CREATE TABLE {x}.progress AS SELECT * FROM ebb.progress WHERE feed LIKE REPLACE('%/{a}/%', '_a/', '/');
		INSERT INTO {a}.t VALUES (2), (3);
		-- wait
		-- sink: DELETE FROM {a}.t WHERE id > 1;
		-- sink: UPDATE ebb.progress p JOIN {x}.progress o USING (feed, table_schema, table_name, since) SET p.position = o.position, p.counter = p.counter + (p.table_name = '');
		RENAME TABLE {a}.t TO {a}.u;
		INSERT INTO {a}.u VALUES (4);
	`},
	{name: "11 XA outside the filter", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o (id INT PRIMARY KEY);
		XA START '{a}1';
		INSERT INTO {x}.o VALUES (1);
		XA END '{a}1';
		XA PREPARE '{a}1';
		XA COMMIT '{a}1';
		INSERT INTO {a}.t VALUES (1);
	`},
	{name: "11 XA inside the filter", ends: mayRefuse, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		XA START '{a}1';
		INSERT INTO {a}.t VALUES (1);
		XA END '{a}1';
		XA PREPARE '{a}1';
		XA COMMIT '{a}1';
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "11 a statement outside the filter", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o (id INT PRIMARY KEY);
		SET SESSION binlog_format = STATEMENT;
		INSERT INTO {x}.o VALUES (1);
		SET SESSION binlog_format = ROW;
		INSERT INTO {a}.t VALUES (1);
	`},
	{name: "11 a statement inside the filter", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		SET SESSION binlog_format = STATEMENT;
		INSERT INTO {a}.t VALUES (1);
		SET SESSION binlog_format = ROW;
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "11 rows without all columns", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, n INT, s TEXT);
		INSERT INTO {a}.t VALUES (1, 1, 'a');
		SET SESSION binlog_row_image = MINIMAL;
		UPDATE {a}.t SET n = 5 WHERE id = 1;
	`},
	{name: "11 rows without all columns outside the filter", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o (id INT PRIMARY KEY, n INT, s TEXT);
		INSERT INTO {x}.o VALUES (1, 1, 'a');
		SET SESSION binlog_row_image = MINIMAL;
		UPDATE {x}.o SET n = 5 WHERE id = 1;
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
	{name: "14 system versioning", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY) WITH SYSTEM VERSIONING;
		INSERT INTO {a}.t VALUES (1);
	`},
	{name: "14 system versioning that is added", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		ALTER TABLE {a}.t ADD SYSTEM VERSIONING;
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "15 sequences", text: `
		CREATE SEQUENCE {a}.s;
		DO NEXTVAL({a}.s);
		CREATE TABLE {a}.t (id INT, n BIGINT DEFAULT (NEXT VALUE FOR {a}.s));
		INSERT INTO {a}.t (id) VALUES (1), (2);
		CREATE SEQUENCE {a}.v START WITH 10 INCREMENT BY 5 CACHE 3;
		DO NEXTVAL({a}.v), NEXTVAL({a}.v), NEXTVAL({a}.v), NEXTVAL({a}.v);
		ALTER SEQUENCE {a}.v RESTART WITH 500;
		DO SETVAL({a}.v, 3000);
		RENAME TABLE {a}.v TO {a}.w;
		DO NEXTVAL({a}.w);
		CREATE OR REPLACE SEQUENCE {a}.y MINVALUE -5 CYCLE;
		DO NEXTVAL({a}.y);
		CREATE SEQUENCE {a}.z;
		DROP SEQUENCE {a}.z;
	`},
	{name: "16 a view that is renamed", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE VIEW {a}.v AS SELECT * FROM {a}.t;
		RENAME TABLE {a}.v TO {a}.w;
		INSERT INTO {a}.w VALUES (1);
	`},
	{name: "17 a collation that is not a default", text: `
		SET NAMES utf8mb4 COLLATE utf8mb4_bin;
		CREATE TABLE {a}.t (id INT PRIMARY KEY, s VARCHAR(10));
		INSERT INTO {a}.t VALUES (1, 'ä');
		SET NAMES latin1 COLLATE latin1_german2_ci;
		CREATE TABLE {a}.u (id INT PRIMARY KEY, s VARCHAR(10) DEFAULT 'x');
	`},
	{name: "18 sets in wide character sets", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, a SET('x', 'y', 'z') CHARACTER SET ucs2, b SET('x', 'ä', 'z') CHARACTER SET utf16, c SET('x', 'y') CHARACTER SET utf16le, d SET('x', 'y', 'z') CHARACTER SET utf32);
		INSERT INTO {a}.t VALUES (1, 'x,z', 'x,ä', 'x,y', 'y,z'), (2, 'x', '', NULL, 'x,y,z');
	`},
	{name: "19 an empty geometry", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, c POINT NOT NULL);
		INSERT IGNORE INTO {a}.t (id) VALUES (100), (101);
		INSERT INTO {a}.t VALUES (1, POINT(1, 2));
		UPDATE {a}.t SET id = 102 WHERE id = 101;
		UPDATE {a}.t SET c = POINT(3, 4) WHERE id = 100;
		CREATE TABLE {a}.u (id INT, c POINT NOT NULL);
		INSERT IGNORE INTO {a}.u (id) VALUES (1);
		INSERT IGNORE INTO {a}.u (id) VALUES (2);
		DELETE FROM {a}.u WHERE id = 2;
	`},
	{name: "20 a long unique key", text: `
		CREATE TABLE {a}.t (b BLOB UNIQUE, n INT);
		INSERT INTO {a}.t VALUES ('a', 1), (NULL, 2), ('b', 3);
		UPDATE {a}.t SET n = 5 WHERE n = 1;
		CREATE TABLE {a}.u (id INT PRIMARY KEY, s TEXT NOT NULL, c TEXT, UNIQUE (s), UNIQUE (c, s) USING HASH);
		INSERT INTO {a}.u VALUES (1, 'a', 'b'), (2, 'b', NULL);
		ALTER TABLE {a}.u DROP INDEX s;
		UPDATE {a}.u SET s = 'c';
	`},
	{name: "21 the name of a table that left the filter", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		RENAME TABLE {a}.t TO {x}.out_of_it;
		CREATE TABLE IF NOT EXISTS {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "21 the name of a table that left the filter and was dropped at the sink", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {a}.u (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		RENAME TABLE {a}.t TO {a}.skip_t, {a}.u TO {x}.u;
		-- wait
		-- sink: DROP TABLE {a}.t, {a}.u;
		CREATE TABLE {a}.t (id INT PRIMARY KEY, n INT);
		INSERT INTO {a}.t VALUES (5, 5);
		CREATE TABLE {a}.w (id INT PRIMARY KEY);
		INSERT INTO {a}.w VALUES (1);
		RENAME TABLE {a}.w TO {a}.u;
		INSERT INTO {a}.u VALUES (2);
	`},
	{name: "22 unique values that change places", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, u INT UNIQUE, v VARCHAR(9) UNIQUE);
		INSERT INTO {a}.t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, NULL, NULL), (4, 4, 'd');
		-- wait
		BEGIN;
		UPDATE {a}.t SET u = NULL WHERE id = 1;
		UPDATE {a}.t SET u = 1 WHERE id = 2;
		UPDATE {a}.t SET u = 2 WHERE id = 1;
		UPDATE {a}.t SET v = 'x' WHERE id = 1;
		UPDATE {a}.t SET v = 'A' WHERE id = 2;
		UPDATE {a}.t SET v = 'B' WHERE id = 1;
		COMMIT;
		REPLACE INTO {a}.t VALUES (5, 2, 'A'), (1, 4, 'q');
		INSERT INTO {a}.t VALUES (9, 1, 'z') ON DUPLICATE KEY UPDATE v = 'dup', u = u + 100;
	`},
	{name: "23 columns that swap their names", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, a INT, b INT);
		INSERT INTO {a}.t VALUES (1, 1, 2);
		ALTER TABLE {a}.t RENAME COLUMN a TO b, RENAME COLUMN b TO a;
		INSERT INTO {a}.t (id, a, b) VALUES (2, 1, 2);
		ALTER TABLE {a}.t CHANGE a b INT, CHANGE b a INT FIRST;
		INSERT INTO {a}.t (id, a, b) VALUES (3, 1, 2);
		UPDATE {a}.t SET a = a + 10;
	`},
	{name: "24 keys that are no integers", text: `
		CREATE TABLE {a}.f (k FLOAT PRIMARY KEY, n INT);
		INSERT INTO {a}.f VALUES (0.1, 1), (16777217, 2), (1e-7, 3);
		CREATE TABLE {a}.d (k DOUBLE PRIMARY KEY, n INT);
		INSERT INTO {a}.d VALUES (0.1, 1), (-0e0, 2), (9007199254740993, 3);
		CREATE TABLE {a}.b (k BLOB, n INT, PRIMARY KEY (k(4)));
		INSERT INTO {a}.b VALUES ('abcdef', 1), (x'00', 2), ('xyzzy', 3);
		CREATE TABLE {a}.t (k TIME(6) PRIMARY KEY, n INT);
		INSERT INTO {a}.t VALUES ('-00:00:00.000001', 1), ('838:59:59.999999', 2), ('00:00:00', 3);
		-- wait
		UPDATE {a}.f SET n = n + 10 WHERE n = 1;
		DELETE FROM {a}.f WHERE n = 2;
		UPDATE {a}.f SET k = 0.3 WHERE n = 3;
		DELETE FROM {a}.d WHERE n = 1;
		UPDATE {a}.d SET k = 0 WHERE n = 2;
		DELETE FROM {a}.d WHERE n = 3;
		UPDATE {a}.b SET k = 'xyzzx' WHERE n = 3;
		DELETE FROM {a}.b WHERE n = 2;
		UPDATE {a}.t SET n = n + 10 WHERE n = 1;
		DELETE FROM {a}.t WHERE n = 2;
	`},
	{name: "25 a huge row", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, b LONGBLOB);
		INSERT INTO {a}.t VALUES (1, REPEAT(x'00', 9000000));
		INSERT INTO {a}.t VALUES (2, REPEAT(x'27', 7000000));
		UPDATE {a}.t SET b = REPEAT('x', 15000000) WHERE id = 1;
		DELETE FROM {a}.t WHERE id = 2;
	`},
	{name: "25 a huge row of a table without a key", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT, b LONGBLOB);
		INSERT INTO {a}.t VALUES (1, REPEAT(x'00', 9000000));
		UPDATE {a}.t SET b = REPEAT('x', 12000000) WHERE id = 1;
	`},
	{name: "26 a table with a trigger at the sink that is renamed into another schema", ends: []outcome{rejected}, text: `
		CREATE DATABASE {b};
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		-- sink: CREATE TRIGGER {a}.fires BEFORE DELETE ON {a}.t FOR EACH ROW SET @x = 1;
		RENAME TABLE {a}.t TO {b}.t;
		INSERT INTO {b}.t VALUES (1);
	`},
	{name: "left out: columns", leaves: omitsColumns, text: `
		CREATE TABLE {a}.t (c1 INT NOT NULL, id INT PRIMARY KEY, c2 INT, c4 TEXT, KEY k (c1, c2), KEY l (c2));
		INSERT INTO {a}.t VALUES (1, 1, 1, 'a'), (2, 2, 2, 'b');
		-- wait
		UPDATE {a}.t SET c1 = 5, c4 = 'c';
		ALTER TABLE {a}.t ADD c7 BLOB, ADD c8 INT DEFAULT 3 AFTER c2, MODIFY c1 BIGINT, DROP KEY k;
		INSERT INTO {a}.t VALUES (3, 3, 3, 33, 'd', 'e');
		ALTER TABLE {a}.t DROP c4, CHANGE c7 c10 LONGBLOB, RENAME COLUMN c8 TO c9;
		-- pause
		CREATE TABLE {a}.u LIKE {a}.t;
		INSERT INTO {a}.u SELECT * FROM {a}.t;
		RENAME TABLE {a}.u TO {a}.v;
		-- resume
		DELETE FROM {a}.t WHERE id = 1;
		UPDATE {a}.v SET id = id + 10, c1 = NULL;
	`},
	{name: "left out: a column that gets another name", leaves: omitsColumns, ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, c1 INT);
		INSERT INTO {a}.t VALUES (1, 1);
		ALTER TABLE {a}.t CHANGE c1 shown INT;
		INSERT INTO {a}.t VALUES (2, 2);
	`},
	{name: "left out: rows", leaves: omitsRows, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, v INT);
		INSERT INTO {a}.t VALUES (1, 1), (2, 2), (3, 3), (4, 4);
		UPDATE {a}.t SET v = v + 1;
		-- wait
		UPDATE {a}.t SET id = id + 4 ORDER BY id DESC;
		UPDATE {a}.t SET id = -id WHERE id > 6;
		ALTER TABLE {a}.t ADD w INT DEFAULT 9, ADD KEY (v);
		-- pause
		UPDATE {a}.t SET id = -id, w = 1;
		DELETE FROM {a}.t WHERE id = 5;
		-- resume
		INSERT INTO {a}.t VALUES (2, 8, 8), (9, 9, 9);
		TRUNCATE {a}.t;
		INSERT INTO {a}.t VALUES (1, 1, 1), (2, 2, 2);
	`},
	{name: "left out: a column that changes", leaves: omitsRows, ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (k INT PRIMARY KEY, id INT);
		INSERT INTO {a}.t VALUES (1, 1), (2, 2);
		UPDATE {a}.t SET id = 3 WHERE k = 1;
	`},
	{name: "left out: rows and columns of a table that is copied", leaves: omitsBoth, snapshot: true, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, c1 INT NOT NULL, v INT);
		INSERT INTO {a}.t SELECT CAST(seq AS SIGNED) - 500, seq, seq FROM {a}.seq_1_to_3000;
		CREATE TABLE {a}.u (id INT, c4 INT);
		INSERT INTO {a}.u VALUES (1, 1), (1, 2), (2, 2);
		-- start
		UPDATE {a}.t SET id = id + 5000 WHERE id BETWEEN -3 AND 3;
		UPDATE {a}.t SET id = 3, c1 = 0 WHERE id = 5001;
		DELETE FROM {a}.u LIMIT 1;
		ALTER TABLE {a}.t DROP c1;
		INSERT INTO {a}.t VALUES (-9000, 1), (9000, 1);
	`},
	{name: "a transaction is skipped, and others are passed over", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- skip
		INSERT INTO {a}.t VALUES (2);
		-- resume after
		INSERT INTO {a}.t VALUES (3);
		-- skip
		-- skip
		INSERT INTO {a}.t VALUES (4);
	`},
	// The referee sees what somebody does to the sink.
	{name: "27 a temporary table that is renamed", ends: []outcome{failed}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		CREATE TEMPORARY TABLE {a}.t (id INT PRIMARY KEY);
		RENAME TABLE {a}.t TO {a}.tt;
		DROP TABLE {a}.tt;
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "27 a temporary table that is truncated", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		SET SESSION binlog_format = MIXED;
		CREATE TEMPORARY TABLE {a}.t (id INT PRIMARY KEY);
		TRUNCATE TABLE {a}.t;
		DROP TEMPORARY TABLE {a}.t;
		SET SESSION binlog_format = ROW;
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "27 a temporary table that is altered", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		SET SESSION binlog_format = MIXED;
		CREATE TEMPORARY TABLE {a}.t (id INT PRIMARY KEY);
		ALTER TABLE {a}.t ADD c INT;
		DROP TEMPORARY TABLE {a}.t;
		SET SESSION binlog_format = ROW;
	`},
	{name: "27 temporary tables that are not in the log", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		CREATE TEMPORARY TABLE {a}.t (id INT PRIMARY KEY);
		ALTER TABLE {a}.t ADD c INT;
		INSERT INTO {a}.t VALUES (5, 6);
		TRUNCATE TABLE {a}.t;
		CREATE TABLE {a}.l LIKE {a}.t;
		CREATE TABLE {a}.m AS SELECT * FROM {a}.t;
		DROP TABLE {a}.t;
		INSERT INTO {a}.t VALUES (2);
	`},
	{name: "27 a table that is made outside the log", ends: []outcome{failed}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		SET SESSION sql_log_bin = 0;
		CREATE TABLE {a}.u (id INT PRIMARY KEY);
		SET SESSION sql_log_bin = 1;
		INSERT INTO {a}.u VALUES (1);
	`},
	{name: "27 a table that is replaced by one like another", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {a}.u (n INT);
		INSERT INTO {a}.u VALUES (1);
		CREATE OR REPLACE TABLE {a}.u LIKE {a}.t;
		INSERT INTO {a}.u VALUES (5);
	`},
	{name: "28 CREATE AS SELECT as a statement", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2);
		SET SESSION binlog_format = STATEMENT;
		CREATE TABLE {a}.u AS SELECT * FROM {a}.t;
		SET SESSION binlog_format = ROW;
	`},
	{name: "29 a new column with a value of its own in every row", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2), (3);
		ALTER TABLE {a}.t ADD c VARCHAR(36) DEFAULT (UUID());
	`},
	{name: "29 a new column with values of a sequence", ends: []outcome{rejected}, text: `
		CREATE SEQUENCE {a}.s;
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2), (3);
		ALTER TABLE {a}.t ADD c BIGINT DEFAULT NEXTVAL({a}.s);
	`},
	{name: "29 new columns with values of the session", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1), (2), (3);
		SET SESSION auto_increment_increment = 7, auto_increment_offset = 3, lc_time_names = 'de_DE', time_zone = '+05:00';
		ALTER TABLE {a}.t ADD c INT AUTO_INCREMENT UNIQUE, ADD m VARCHAR(20) DEFAULT (DATE_FORMAT('2024-03-01', '%M')), ADD n DATETIME(6) DEFAULT NOW(6);
		SET SESSION auto_increment_increment = 1, auto_increment_offset = 1, lc_time_names = 'en_US', time_zone = '+00:00';
	`},
	{name: "30 lists of partitions and columns", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN (30), PARTITION p3 VALUES LESS THAN (40));
		INSERT INTO {a}.t VALUES (1, 1), (11, 1), (21, 1), (31, 1);
		ALTER TABLE {a}.t REORGANIZE PARTITION p0, p1 INTO (PARTITION q VALUES LESS THAN (20));
		ALTER TABLE {a}.t TRUNCATE PARTITION q, p2;
		INSERT INTO {a}.t VALUES (2, 2), (12, 2), (22, 2);
		ALTER TABLE {a}.t DROP PARTITION p2, p3;
		ALTER TABLE {a}.t REMOVE PARTITIONING;
		ALTER TABLE {a}.t ORDER BY n DESC, id;
	`},
	{name: "31 RENAME IF EXISTS through a table that exists", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.kept (id INT PRIMARY KEY);
		INSERT INTO {a}.kept VALUES (1);
		RENAME TABLE IF EXISTS {a}.nope TO {a}.kept, {a}.kept TO {a}.z;
		INSERT INTO {a}.z VALUES (2);
	`},
	{name: "31 RENAME IF EXISTS of some that are missing", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		RENAME TABLE IF EXISTS {a}.nope TO {a}.x, {a}.t TO {a}.u, {a}.nope2 TO {a}.t;
		INSERT INTO {a}.u VALUES (2);
		CREATE TABLE {a}.x (id INT PRIMARY KEY, n INT);
		INSERT INTO {a}.x VALUES (2, 3);
		ALTER TABLE {a}.x RENAME TO {a}.y, RENAME TO {a}.x;
		INSERT INTO {a}.x VALUES (4, 5);
	`},
	{name: "32 a default within CASE", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		ALTER TABLE {a}.t ADD c VARCHAR(50) DEFAULT CASE WHEN 1 THEN UUID() END;
	`},
	{name: "32 a default without brackets", ends: []outcome{rejected}, text: `
		SET sql_mode = ORACLE;
		CREATE TABLE {a}.t (id NUMBER PRIMARY KEY, v VARCHAR2(10), d DATE DEFAULT SYSDATE);
		INSERT INTO {a}.t (id, v) VALUES (1, 'x');
		TRUNCATE TABLE {a}.t DROP STORAGE;
		INSERT INTO {a}.t (id, v) VALUES (2, 'y');
		ALTER TABLE {a}.t ADD c TIMESTAMP DEFAULT SYSDATE;
	`},
	{name: "33 a stored column that was computed in another time zone", ends: []outcome{rejected}, text: `
		SET time_zone = '+05:00';
		CREATE TABLE {a}.t (id INT PRIMARY KEY, ts TIMESTAMP, h INT AS (HOUR(ts)) STORED);
		INSERT INTO {a}.t (id, ts) VALUES (1, '2026-01-01 01:00:00');
	`},
	{name: "33 a stored column that was computed in UTC", text: `
		SET time_zone = '+00:00';
		CREATE TABLE {a}.t (id INT PRIMARY KEY, ts TIMESTAMP, h INT AS (HOUR(ts)) STORED, d DATE AS (DATE(ts)) STORED, KEY (d));
		INSERT INTO {a}.t (id, ts) VALUES (1, '2026-01-01 01:00:00'), (2, NULL);
		UPDATE {a}.t SET ts = '2026-02-02 02:02:02';
		DELETE FROM {a}.t WHERE id = 1;
	`},
	{name: "33 a stored column that was cut", ends: []outcome{rejected}, text: `
		SET sql_mode = '';
		CREATE TABLE {a}.t (id INT PRIMARY KEY, a INT, g TINYINT AS (a * 100) STORED);
		INSERT INTO {a}.t (id, a) VALUES (1, 5);
	`},
	{name: "34 CREATE OR REPLACE SELECT that fails", text: `
		CREATE TABLE {a}.t (id INT);
		INSERT INTO {a}.t VALUES (1);
		CREATE PROCEDURE {a}.p() BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; CREATE OR REPLACE TABLE {a}.t (id INT PRIMARY KEY) SELECT 1 AS id UNION ALL SELECT 1; END;
		CALL {a}.p();
		CREATE TABLE {a}.t (id INT, n INT);
		INSERT INTO {a}.t VALUES (3, 4);
	`},
	{name: "35 the character set of the schema", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, s VARCHAR(20));
		INSERT INTO {a}.t VALUES (1, 'x');
		ALTER DATABASE {a} CHARACTER SET latin1;
		ALTER TABLE {a}.t CONVERT TO CHARACTER SET DEFAULT;
		ALTER DATABASE {a} CHARACTER SET utf8mb4;
		ALTER TABLE {a}.t DEFAULT CHARACTER SET = DEFAULT;
		ALTER TABLE {a}.t ADD u VARCHAR(10);
		INSERT INTO {a}.t VALUES (2, 'ü', 'ж');
	`},
	{name: "36 a sequence that is dropped while a default names it", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, n BIGINT, k INT);
		CREATE SEQUENCE {a}.s START 100;
		ALTER TABLE {a}.t ALTER n SET DEFAULT NEXTVAL({a}.s);
		INSERT INTO {a}.t (id) VALUES (1), (2);
		-- wait
		DROP SEQUENCE {a}.s;
		UPDATE {a}.t SET k = 5 WHERE id = 1;
		DELETE FROM {a}.t WHERE id = 2;
		ALTER TABLE {a}.t ALTER n DROP DEFAULT;
		INSERT INTO {a}.t VALUES (3, 3, 3);
	`},
	{name: "37 options of tables", text: `
		SET innodb_strict_mode = 0;
		CREATE TABLE {a}.t (id INT PRIMARY KEY, a TEXT) ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=64;
		INSERT INTO {a}.t VALUES (1, 'x');
		ALTER TABLE {a}.t ROW_FORMAT=DYNAMIC, KEY_BLOCK_SIZE=0;
		SET innodb_strict_mode = 1;
		ALTER TABLE {a}.t ADD c INT, ` + "`PAGE_COMPRESSED` = 1" + `;
		INSERT INTO {a}.t VALUES (2, 'y', 2);
	`},
	{name: "38 text with a character set before it in another one", ends: []outcome{rejected}, text: `
		SET NAMES latin1;
		CREATE TABLE {a}.t (id INT PRIMARY KEY, s VARCHAR(20) CHARACTER SET latin1 DEFAULT _latin1'é');
		INSERT INTO {a}.t (id) VALUES (1);
	`},
	{name: "39 numbers for rows without an order", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (v INT);
		INSERT INTO {a}.t VALUES (1), (2);
		ALTER TABLE {a}.t ADD id INT AUTO_INCREMENT PRIMARY KEY;
	`},
	{name: "39 numbers for rows with an order", text: `
		CREATE TABLE {a}.t (v INT);
		ALTER TABLE {a}.t ADD id INT AUTO_INCREMENT PRIMARY KEY;
		INSERT INTO {a}.t (v) VALUES (1), (2);
		ALTER TABLE {a}.t ADD n INT AUTO_INCREMENT UNIQUE, DROP PRIMARY KEY, CHANGE id id INT;
		INSERT INTO {a}.t VALUES (1, 1, 5);
	`},
	{name: "40 columns that become addresses while the changefeed is paused", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, b BINARY(16), c BINARY(4), d BINARY(16), u UUID, i INET6);
		-- wait
		-- pause
		INSERT INTO {a}.t VALUES (1, UNHEX('123e4567e89b12d3a456426655440000'), UNHEX('01020304'), UNHEX('00000000000000000000000000000001'), '01890a5d-ac96-774b-bcce-b302099a8057', '::ffff:1.2.3.4');
		ALTER TABLE {a}.t MODIFY b UUID, MODIFY c INET4, MODIFY d INET6, MODIFY u BINARY(16), MODIFY i VARBINARY(16);
		INSERT INTO {a}.t VALUES (2, '550e8400-e29b-41d4-a716-446655440000', '9.9.9.9', '::5', 'u', 'i');
		-- resume
		UPDATE {a}.t SET id = id + 10;
	`},
	{name: "referee: a row is changed at the sink", ends: []outcome{differs}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, f FLOAT);
		INSERT INTO {a}.t VALUES (1, 16777215), (2, 0.1);
		-- wait
		-- sink: UPDATE {a}.t SET f = 16777214 WHERE id = 1;
	`},
	{name: "referee: a row is doubled at the sink", ends: []outcome{differs}, text: `
		CREATE TABLE {a}.t (id INT);
		INSERT INTO {a}.t VALUES (1);
		-- wait
		-- sink: INSERT INTO {a}.t VALUES (1);
	`},
	{name: "referee: a table is altered at the sink", ends: []outcome{differs}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		-- sink: ALTER TABLE {a}.t COMMENT 'other';
	`},
	{name: "referee: a table is made at the sink", ends: []outcome{differs}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		-- sink: CREATE TABLE {a}.u (id INT);
	`},
	{name: "referee: a table outside the filter is changed at the sink", ends: []outcome{differs}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		-- sink: DELETE FROM {x}.o1;
	`},
	{name: "referee: the sink lacks a table", ends: []outcome{failed}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		-- sink: DROP TABLE {a}.t;
		INSERT INTO {a}.t VALUES (1);
	`},
}...)
