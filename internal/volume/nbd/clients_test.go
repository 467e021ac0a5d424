package nbd

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

const testSize = 64 << 20

func run(t testing.TB, program string, args ...string) string {
	t.Helper()
	need.Programs(t, program)
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// image makes a sparse file: 1 MiB of data in every 4 MiB.
func image(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	for off := int64(0); off < size; off += 4 << 20 {
		_, _ = rand.Read(data)
		if _, err := file.WriteAt(data, off); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func sameFiles(t testing.TB, a, b string) {
	t.Helper()
	one, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Errorf("%s and %s differ", a, b)
	}
}

func TestNbdinfoSeesWhatTheServerCanDo(t *testing.T) {
	need.Programs(t, "nbdinfo")
	device := newFileDevice(t, testSize)
	s := serve(t, device, Options{})

	var info struct {
		Protocol   string `json:"protocol"`
		Structured bool   `json:"structured"`
		Exports    []struct {
			Name         string   `json:"export-name"`
			Size         int64    `json:"export-size"`
			Contexts     []string `json:"contexts"`
			CanFlush     bool     `json:"can_flush"`
			CanFUA       bool     `json:"can_fua"`
			CanTrim      bool     `json:"can_trim"`
			CanZero      bool     `json:"can_zero"`
			CanDF        bool     `json:"can_df"`
			CanMultiConn bool     `json:"can_multi_conn"`
			ReadOnly     bool     `json:"is_read_only"`
			Minimum      int64    `json:"block_size_minimum"`
			Preferred    int64    `json:"block_size_preferred"`
			Maximum      int64    `json:"block_size_maximum"`
		} `json:"exports"`
	}
	if err := json.Unmarshal([]byte(run(t, "nbdinfo", "--json", s.URI())), &info); err != nil {
		t.Fatal(err)
	}
	const want = "newstyle-fixed true [{vol 67108864 [base:allocation] true true true true true true false 1 4096 33554432}]"
	if got := fmt.Sprintf("%s %t %v", info.Protocol, info.Structured, info.Exports); got != want {
		t.Errorf("nbdinfo says %s, want %s", got, want)
	}
	if list := run(t, "nbdinfo", "--list", "nbd+unix:///?socket="+s.socket); !strings.Contains(list, `export="vol"`) {
		t.Errorf("nbdinfo --list says\n%s", list)
	}
}

func TestNbdinfoSeesHoles(t *testing.T) {
	need.Programs(t, "nbdinfo")
	device := newFileDevice(t, testSize)
	s := serve(t, device, Options{})
	if _, err := device.file.WriteAt(bytes.Repeat([]byte{1}, 1<<20), 8<<20); err != nil {
		t.Fatal(err)
	}
	type extent struct {
		Offset int64 `json:"offset"`
		Length int64 `json:"length"`
		Type   int   `json:"type"`
	}
	var got []extent
	if err := json.Unmarshal([]byte(run(t, "nbdinfo", "--json", "--map", s.URI())), &got); err != nil {
		t.Fatal(err)
	}
	want := []extent{{0, 8 << 20, 3}, {8 << 20, 1 << 20, 0}, {9 << 20, testSize - 9<<20, 3}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the map is %v, want %v", got, want)
	}
}

func TestNbdcopyCopiesBothWaysAndKeepsHoles(t *testing.T) {
	need.Programs(t, "nbdcopy")
	device := newFileDevice(t, testSize)
	s := serve(t, device, Options{})
	source, back := image(t, testSize), filepath.Join(t.TempDir(), "back")

	run(t, "nbdcopy", "--flush", source, s.URI())
	sameFiles(t, source, device.file.Name())
	if used := allocated(t, device.file.Name()); used > testSize/2 {
		t.Errorf("%d bytes are allocated for %d bytes of data", used, testSize/4)
	}
	run(t, "nbdcopy", s.URI(), back)
	sameFiles(t, source, back)
}

func TestQemuImgConvertsComparesAndMaps(t *testing.T) {
	need.Programs(t, "qemu-img")
	device := newFileDevice(t, testSize)
	s := serve(t, device, Options{})
	source, back := image(t, testSize), filepath.Join(t.TempDir(), "back.qcow2")

	run(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16", source, s.URI())
	run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", source, s.URI())
	sameFiles(t, source, device.file.Name())
	run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", s.URI(), back)
	run(t, "qemu-img", "compare", "-f", "qcow2", "-F", "raw", back, source)

	var extents []struct {
		Start, Length int64
		Data, Zero    bool
	}
	if err := json.Unmarshal([]byte(run(t, "qemu-img", "map", "--output=json", "-f", "raw", s.URI())), &extents); err != nil {
		t.Fatal(err)
	}
	if len(extents) != 32 || !extents[0].Data || extents[0].Length != 1<<20 || extents[1].Data || !extents[1].Zero {
		t.Errorf("the map is %+v", extents)
	}
}

func TestQemuIOVerifiesPatternsDiscardsAndZeroes(t *testing.T) {
	need.Programs(t, "qemu-io")
	device := newFileDevice(t, testSize)
	s := serve(t, device, Options{})
	out := run(t, "qemu-io", "-f", "raw", "-d", "unmap",
		"-c", "write -P 0x11 0 4M",
		"-c", "write -f -P 0x22 1M 512",
		"-c", "write -P 0x33 65535 3", // neither aligned to blocks nor to pages
		"-c", "read -P 0x11 0 65535",
		"-c", "read -P 0x33 65535 3",
		"-c", "read -P 0x22 1M 512",
		"-c", "write -z 2M 64k", // keeps the space
		"-c", "write -z -u 3M 64k",
		"-c", "read -P 0 2M 64k",
		"-c", "read -P 0 3M 64k",
		"-c", "flush",
		"-c", "discard 0 1M",
		"-c", "read -P 0 0 1M",
		"-c", "aio_write -P 0x44 8M 1M",
		"-c", "aio_write -P 0x55 9M 1M",
		"-c", "aio_flush",
		"-c", "read -P 0x44 8M 1M",
		"-c", "read -P 0x55 9M 1M",
		"-c", "read -P 0 32M 32M",
		s.URI())
	if strings.Contains(out, "failed") || strings.Contains(out, "error") {
		t.Errorf("qemu-io:\n%s", out)
	}
	for what, off := range map[string]int64{"discard": 0, "write -z -u": 3 << 20} {
		extents, err := device.Extents(t.Context(), off, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(extents) != "[{65536 true}]" {
			t.Errorf("after %s: %v", what, extents)
		}
	}
}

func TestFioVerifiesWhatItWrote(t *testing.T) {
	need.Programs(t, "fio")
	device := newFileDevice(t, testSize)
	s := serve(t, device, Options{})
	report := filepath.Join(t.TempDir(), "fio.json")
	run(t, "fio", "--name=verify", "--ioengine=nbd", "--uri="+s.URI(), "--rw=randwrite", "--bsrange=512-64k", "--iodepth=16",
		"--size=64M", "--io_size=64M", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--fsync=256", "--randseed=7", "--output-format=json", "--output="+report)
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Jobs []struct {
			Error int
			Read  struct {
				Bytes int64 `json:"io_bytes"`
			}
			Write struct {
				Bytes int64 `json:"io_bytes"`
			}
		}
	}
	if err := json.Unmarshal(text[bytes.IndexByte(text, '{'):], &result); err != nil {
		t.Fatal(err)
	}
	job := result.Jobs[0]
	if job.Error != 0 || job.Write.Bytes == 0 || job.Read.Bytes < job.Write.Bytes/2 {
		t.Errorf("fio reports %+v", job)
	}
}
