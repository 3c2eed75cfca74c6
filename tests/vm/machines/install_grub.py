"""Installs GRUB for a BIOS into a disk image: install_grub.py DISK BOOT_IMG CORE_IMG

Does what grub-bios-setup does with a device: writes the first stage (boot.img) to sector 0, with a partition table, and the core (from
grub-mkimage) to the sectors behind it. The first stage reads the core from sector 1, and the core's first sector reads the rest from
sector 2: both are GRUB's defaults, so nothing is patched.
"""

import struct
import sys

SECTOR = 512
FIRST = 2048  # of the partition
TABLE = 446  # of the MBR: four entries of 16 bytes, and the signature


def main(disk, boot, core):
    with open(boot, "rb") as file:
        stage = file.read(TABLE)
    with open(core, "rb") as file:
        image = file.read()
    if len(image) > (FIRST - 1) * SECTOR:
        sys.exit(f"{core} has {len(image)} bytes, too many for the gap before the partition")
    with open(disk, "r+b") as file:
        size = file.seek(0, 2) // SECTOR - FIRST
        # Active, Linux. Cylinder addresses are not used.
        entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", FIRST, size)
        file.seek(0)
        file.write(stage + entry + bytes(48) + b"\x55\xaa")
        file.write(image)


if __name__ == "__main__":
    main(*sys.argv[1:])
