package sqlsink_test

import (
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// With lower_case_table_names=1 a server has all names in lower case, whatever its statements write.
func TestNamesOfAServerWithLowerCase(t *testing.T) {
	a, b := testenv.StartMariaDB(t, "--lower-case-table-names=1"), testenv.StartMariaDB(t, "--lower-case-table-names=1", "--server-id=2")
	a.Exec("CREATE DATABASE Shop", "CREATE TABLE Shop.Orders (Id INT PRIMARY KEY, N INT)", "INSERT INTO shop.ORDERS VALUES (1, 1), (2, 2)", "ALTER TABLE SHOP.Orders ADD COLUMN C INT DEFAULT 5",
		"CREATE TABLE Shop.ÄPFEL LIKE shop.orders", "INSERT INTO shop.äpfel SELECT * FROM Shop.Orders",
		"RENAME TABLE Shop.Orders TO Shop.Old, SHOP.Äpfel TO shop.ORDERS", "UPDATE Shop.old SET n = 7", "TRUNCATE Shop.ORDERS", "INSERT INTO shop.Orders VALUES (9, 9, 9)",
		"CREATE TABLE Shop.Parent (id INT PRIMARY KEY)", "CREATE TABLE Shop.Child (id INT PRIMARY KEY, p INT, CONSTRAINT Fk FOREIGN KEY (p) REFERENCES PARENT (id))", "INSERT INTO Shop.PARENT VALUES (1)", "INSERT INTO Shop.CHILD VALUES (1, 1)",
		"CREATE INDEX I ON Shop.CHILD (P, Id)", "DROP TABLE SHOP.Old", "CREATE DATABASE Gone", "CREATE TABLE GONE.T (id INT)", "DROP DATABASE gONE", "CREATE SEQUENCE Shop.S", "CREATE OR REPLACE TABLE Shop.Made AS SELECT * FROM SHOP.orders")
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
	p.sync(t)
	equal(t, a, b)
}

func TestTablesOfAServerWithLowerCaseAreCopied(t *testing.T) {
	a, b := testenv.StartMariaDB(t, "--lower-case-table-names=1"), testenv.StartMariaDB(t, "--lower-case-table-names=1", "--server-id=2")
	a.Exec("CREATE DATABASE Shop", "CREATE TABLE Shop.Orders (Id INT PRIMARY KEY, `Name` VARCHAR(10))", "INSERT INTO shop.ORDERS VALUES (1, 'a'), (2, 'b')", "CREATE TABLE Shop.Keyless (Id INT)", "INSERT INTO Shop.Keyless VALUES (1)",
		"CREATE TABLE Shop.Child (id INT PRIMARY KEY, p INT, CONSTRAINT Fk FOREIGN KEY (p) REFERENCES Orders (Id))")
	copyStill(t, a, b, 1)
}
